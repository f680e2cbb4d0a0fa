// Replaces the parts of the page that changed, every 2 s, and every 30 s while nobody sees it.
"use strict";

const connection = document.getElementById("connection");

function replace(old, part) {
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const scrolled = new Map([...old.querySelectorAll(".table")].map((one) => [one.id, one.scrollLeft]));
  old.replaceWith(part);
  for (const [id, left] of scrolled) {
    const found = document.getElementById(id);
    if (found) found.scrollLeft = left;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

async function look() {
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(9000) });
    if (!answer.ok) throw new Error(String(answer.status));
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const chosen = getSelection();
    for (const part of next.querySelectorAll("[data-live]")) {
      const old = document.getElementById(part.id);
      if (!old || old.outerHTML === part.outerHTML) continue;
      // Somebody is about to copy it.
      if (!chosen.isCollapsed && old.contains(chosen.anchorNode)) continue;
      replace(old, document.adoptNode(part));
    }
    if (connection.textContent) connection.textContent = "";
  } catch {
    connection.textContent = "The console does not answer: what is shown is old.";
  }
  setTimeout(look, document.hidden ? 30000 : 2000);
}

setTimeout(look, 2000);
