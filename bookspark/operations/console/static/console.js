// Replaces the parts of the page that changed, every 2 s, sooner while something is being looked at, and every 30 s while
// nobody sees the page. A part that depends on the page's address only is not asked for again, until somebody moves a slider.
// The order, the columns and the colours that somebody chose are kept.
"use strict";

document.documentElement.classList.add("js");
const connection = document.getElementById("connection");
let turn = 0;
let following;

// -- Colours: as the system, light or dark.

const themes = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A browser without storage keeps the choice until the next page.
  }
}

function colour(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const told = `Colours: ${theme === "system" ? "as the system" : theme}`;
  themeButton.setAttribute("aria-label", told);
  themeButton.title = told;
}

let theme = themes.includes(stored("theme")) ? stored("theme") : "system";
colour(theme);
themeButton.addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  store("theme", theme);
  colour(theme);
  drawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());

// -- Times: the browser's beside UTC, if they differ.

function tellTimes(within) {
  for (const one of within.querySelectorAll("time")) {
    const at = new Date(one.dateTime);
    if (Number.isNaN(at.valueOf())) continue;
    one.title = `${at.toLocaleString()} in this browser`;
    if (at.getTimezoneOffset()) one.dataset.local = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  }
}

// -- Tables: order by a column, and all columns on a phone.

const orders = new Map();
const wide = new Set();

function valueOf(row, column) {
  const cell = row.cells[column];
  const told = cell.dataset.order ?? cell.textContent.trim();
  const number = Number(told.replace(/,/g, ""));
  return told !== "" && Number.isFinite(number) ? number : told;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? 1 : -1;
  return a.localeCompare(b);
}

function order(box) {
  const chosen = orders.get(box.id);
  const body = box.querySelector("tbody");
  if (!chosen || !body) return;
  const { column, down } = chosen;
  const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(valueOf(a, column), valueOf(b, column)));
  body.append(...rows);
  [...box.querySelectorAll("thead th")].forEach((head, at) => {
    if (at === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function widen(box) {
  const all = wide.has(box.id);
  box.classList.toggle("wide", all);
  box.querySelector(".all")?.setAttribute("aria-pressed", String(all));
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const box = button.closest(".table");
  if (button.classList.contains("sort")) {
    const column = button.closest("th").cellIndex;
    const before = orders.get(box.id);
    orders.set(box.id, { column, down: before?.column === column ? !before.down : false });
    order(box);
  } else if (button.classList.contains("all")) {
    if (!wide.delete(box.id)) wide.add(box.id);
    widen(box);
  } else if (button.classList.contains("copy")) {
    await copy(button);
  } else if (button.classList.contains("range")) {
    choose(Number(button.dataset.seconds));
  }
});

async function copy(button) {
  const code = button.closest(".command").querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    // Without the right to the clipboard the line is marked, to be copied by hand.
    getSelection().selectAllChildren(code);
    button.textContent = "Marked";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function dress(within) {
  tellTimes(within);
  for (const box of within.querySelectorAll(".table")) {
    order(box);
    widen(box);
  }
}

// -- Live parts

const shown = new Map();
for (const one of document.querySelectorAll("[data-live]")) shown.set(one.id, one.outerHTML);

function replace(old, part) {
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const scrolled = new Map([...old.querySelectorAll(".table")].map((one) => [one.id, one.scrollLeft]));
  old.replaceWith(part);
  dress(part);
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
      const raw = part.outerHTML;
      const old = document.getElementById(id);
      if (!old && before) {
        before.after(document.adoptNode(part));
        dress(part);
        shown.set(id, raw);
      } else if (old && raw !== shown.get(id) && (chosen.isCollapsed || !old.contains(chosen.anchorNode))) {
        // A part with a selection stays: somebody is about to copy it.
        replace(old, document.adoptNode(part));
        shown.set(id, raw);
      }
      before = document.getElementById(id);
    }
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

// -- The sliders over snapshots: the page of a moment is asked for as soon as the hand rests.

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

// The slider that nobody moved shows the snapshot of the comparison.
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

// -- Plots

const plots = document.getElementById("plots");
const drawn = new Map();
let figures = null;
let seconds = Number(new URL(location.href).searchParams.get("seconds")) || 900;

const scales = {
  "/s": (value) => `${short(value)}/s`,
  "B/s": (value) => `${short(value)}${Math.abs(value) < 1e3 ? " " : ""}B/s`,
  ms: (value) => `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ms`,
  rows: (value) => short(value),
};

function short(value) {
  for (const [size, word] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${word}`;
  }
  return String(Number(value.toPrecision(3)));
}

function words(unit, value) {
  return value === null || value === undefined ? "not known" : scales[unit](value);
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function choose(chosen) {
  seconds = chosen;
  const asked = new URL(location.href);
  asked.searchParams.set("seconds", String(seconds));
  history.replaceState(null, "", asked);
  fetchFigures();
}

let asking;
async function fetchFigures() {
  clearTimeout(asking);
  for (const one of plots.querySelectorAll(".range")) {
    one.setAttribute("aria-pressed", String(Number(one.dataset.seconds) === seconds));
  }
  const note = document.getElementById("plots-note");
  try {
    const source = new URL(plots.dataset.from, location.href);
    source.searchParams.set("seconds", String(seconds));
    const answer = await fetch(source, { cache: "no-store", signal: AbortSignal.timeout(9000) });
    if (!answer.ok) throw new Error(String(answer.status));
    figures = await answer.json();
    note.textContent = figures.source;
    drawAll();
  } catch {
    note.textContent = "the figures can't be had now";
  }
  asking = setTimeout(fetchFigures, document.hidden ? 60000 : 10000);
}

function drawAll() {
  if (!plots || !figures) return;
  for (const figure of plots.querySelectorAll("figure")) {
    const key = figure.id.slice("plot-".length);
    draw(figure, figures.plots[key] ?? { x: [], lines: {} });
  }
}

function draw(figure, found) {
  const { unit, title } = figure.dataset;
  const names = Object.keys(found.lines);
  const values = names.map((name) => found.lines[name]);
  const newest = names.map((name, at) => {
    const known = values[at].filter((one) => one !== null);
    const most = known.length ? `, at most ${words(unit, Math.max(...known))}` : "";
    return `${name} ${words(unit, values[at].at(-1))}${most}`;
  });
  figure.setAttribute("aria-label", `${title}: ${newest.join("; ") || "no figures yet"}`);
  figure.querySelector("b").textContent = newest.length ? names.map((_, at) => words(unit, values[at].at(-1))).join(" · ") : "none yet";
  const box = figure.querySelector(".plot");
  const inks = ["--mark", "--second", "--busy", "--good", "--bad", "--soft"].map(css);
  const shape = JSON.stringify([names, box.clientWidth, inks]);
  const data = [found.x, ...values];
  const range = { x: { time: true, min: figures.from, max: figures.to } };
  const before = drawn.get(figure.id);
  if (before && before.shape === shape) {
    before.from = figures.from;
    before.to = figures.to;
    before.plot.setData(data, false);
    if (!before.zoomed) before.plot.setScale("x", { min: figures.from, max: figures.to });
    return;
  }
  before?.plot.destroy();
  const own = { shape, zoomed: false, from: figures.from, to: figures.to };
  const pad = (one) => String(one).padStart(2, "0");
  const clock = (_, ticks) => ticks.map((one) => {
    const at = new Date(1000 * one);
    const day = `${pad(at.getUTCMonth() + 1)}-${pad(at.getUTCDate())}`;
    const hour = `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}`;
    const fine = ticks.length > 1 && ticks[1] - ticks[0] < 60;
    return figures.to - figures.from > 86400 ? `${day} ${hour}` : fine ? `${hour}:${pad(at.getUTCSeconds())}` : hour;
  });
  const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "12px system-ui" };
  own.plot = new uPlot(
    {
      width: box.clientWidth,
      height: matchMedia("(max-width: 40rem)").matches ? 100 : 150,
      cursor: { drag: { x: true, y: false } },
      scales: { x: { time: true, range: (_, least, most) => [least ?? own.from, most ?? own.to] }, y: { range: (_, least, most) => [Math.min(0, least ?? 0), most > 0 ? most * 1.1 : 1] } },
      axes: [{ ...axis, values: clock, space: 70 }, { ...axis, size: 70, values: (_, ticks) => ticks.map((one) => words(unit, one)) }],
      series: [
        { label: "UTC", value: (_, at) => (at === null ? "–" : new Date(1000 * at).toISOString().slice(0, 19).replace("T", " ")) },
        ...names.map((label, at) => ({ label, stroke: inks[at % inks.length], width: 2, spanGaps: false, points: { show: false }, value: (_, one) => (one === null ? "–" : words(unit, one)) })),
      ],
      tzDate: (at) => uPlot.tzDate(new Date(1000 * at), "Etc/UTC"),
      hooks: {
        setSelect: [() => (own.zoomed = true)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => {
          own.zoomed = false;
          plot.setScale("x", { min: own.from, max: own.to });
        })],
      },
    },
    data,
    box,
  );
  own.plot.setScale("x", { min: range.x.min, max: range.x.max });
  drawn.set(figure.id, own);
}

if (plots) {
  new ResizeObserver(() => drawAll()).observe(plots);
  fetchFigures();
}

dress(document);
plan();
