// Replaces the parts of the page that changed, every 2 s, sooner while something is being looked at, and every 30 s while
// nobody sees the page. What stays as it is is not asked for again, until somebody moves a slider.
"use strict";

let turn = 0;
let following;

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
  const mine = ++turn;
  clearTimeout(following);
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(9000) });
    if (!answer.ok) throw new Error(String(answer.status));
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    // A slider was moved meanwhile.
    if (mine !== turn) return;
    const chosen = getSelection();
    const there = [...next.querySelectorAll("[data-live]")].map((one) => one.id);
    let before = null;
    for (const id of there) {
      const part = next.getElementById(id);
      const old = document.getElementById(id);
      if (!old && before) before.after(document.adoptNode(part));
      // Somebody is about to copy it.
      else if (old && old.outerHTML !== part.outerHTML && (chosen.isCollapsed || !old.contains(chosen.anchorNode))) {
        replace(old, document.adoptNode(part));
      }
      before = document.getElementById(id);
    }
    // What only the moment before had.
    for (const old of document.querySelectorAll("[data-live]")) if (!there.includes(old.id)) old.remove();
    follow(next);
    if (connection.textContent) connection.textContent = "";
  } catch {
    connection.textContent = "The console does not answer: what is shown is old.";
  }
  if (mine === turn) plan();
}

function plan() {
  if (!connection.textContent && !document.querySelector('[data-live]:not([data-live="still"])')) return;
  const waiting = document.querySelector(".waiting") ? 500 : 2000;
  following = setTimeout(look, document.hidden ? 30000 : waiting);
}

// The sliders over snapshots: what was is asked for as soon as the hand rests.
const moments = document.getElementById("moments");
const times = moments ? moments.dataset.times.split(" ").map((one) => one.split(":").map(Number)) : [];

function tell(slider) {
  const version = Number(slider.value);
  const [found, seconds] = times.findLast((one) => one[0] <= version) ?? times[0];
  const told = `${new Date(1000 * seconds).toISOString().slice(0, 19).replace("T", " ")} UTC, snapshot ${found}`;
  document.getElementById(`${slider.id}-told`).textContent = told;
  slider.setAttribute("aria-valuetext", told);
}

function slide(slider) {
  tell(slider);
  const asked = new URL(location.href);
  asked.searchParams.set(slider.name, slider.value);
  history.replaceState(null, "", asked);
  clearTimeout(following);
  ++turn;
  following = setTimeout(look, 250);
}

// The slider that nobody moved shows what the answer is compared with.
function follow(next) {
  for (const slider of moments ? moments.querySelectorAll("input[type=range]") : []) {
    if (slider === document.activeElement) continue;
    slider.value = next.getElementById(slider.id)?.value ?? slider.value;
    tell(slider);
  }
}

for (const slider of moments ? moments.querySelectorAll("input[type=range]") : []) {
  slider.addEventListener("input", () => slide(slider));
}

plan();
