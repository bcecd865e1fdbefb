// The page: a state, which the address holds, and everything that is drawn from it.
import { $, draw, make, widthOf } from "./dom.js";
import { analyse, numbers } from "./analysis.js";
import { controls } from "./controls.js";
import { lecture } from "./lecture.js";
import { Learning } from "./learning.js";
import { load } from "./modules.js";
import * as pictures from "./pictures.js";
import { parse, print } from "./state.js";
import { typed } from "./typed.js";

const data = JSON.parse($("data").textContent);
const groups = { ...data.groups, Yours: ["typed"] };
const texts = data.sources, loaded = {};
const modules = new Proxy(loaded, {
  get: (all, name) => (all[name] ??= texts[name] && load(texts[name])),
  has: (all, name) => name in all || name in texts,
});
let state = parse(location.hash), found = null, asked = 0;
if (!modules[state.cell] && state.cell !== "typed") state.cell = "elman";

function change(part, value) {
  if (Array.isArray(part)) state[part[0]] = { ...state[part[0]], [part[1]]: value };
  else if (part === "cell") state = { ...state, cell: value, bias: {}, param: {}, show: "" };
  else if (part === "task") state = { ...state, task: value, gates: data.experiments[value].inputGateBias };
  else state[part] = value;
  if (part === "length") $("step").max = value;
  remember();
  if (part === "cell") buildControls();
  if (part === "task" || part === "gates") learning.begin(state);
  else later();
}

function remember() {
  history.replaceState(null, "", print(state));
  lecture(state, print, go);
}

// Several changes of state at once, as a step of the lecture makes them.
function go(changes, action) {
  const turned = "lecture" in changes;
  if (changes.cell && changes.cell !== state.cell) state = { ...state, bias: {}, param: {}, show: "" };
  state = { ...state, ...changes };
  if (turned) history.pushState(null, "", print(state));
  show();
  if (turned) scrollTo({ top: 0 });
  if (action === "start") learning.start();
}

function show() {
  remember();
  buildControls();
  learning.begin(state);
  learning.draw();
  later();
}

function buildControls() {
  if (!modules[state.cell]) state.cell = "elman";
  controls(groups, modules, state, change);
  const names = pictures.variables(modules[state.cell].cell);
  $("show").replaceChildren(...names.map(([value, text]) => make("option", { value }, text)));
  $("show").value = names.some(([value]) => value === state.show) ? state.show : "y";
}

function later() {
  cancelAnimationFrame(asked);
  asked = requestAnimationFrame(redraw);
}

function redraw() {
  if ($("main").hidden) return;
  const next = analyse(modules[state.cell], data.gains[state.cell], state);
  for (const figure of document.querySelectorAll("#pictures > figure")) figure.classList.toggle("stale", !next.finite);
  if (!next.finite) {
    $("picture-flow").querySelector(".reading").textContent = "The activities leave the range of numbers; the last finite pictures stay.";
    return;
  }
  found = next;
  for (const name of ["flow", "activity", "eigen", "carousel", "memory", "credit"]) {
    const id = `picture-${name}`;
    if (!$(id).hidden) draw(id, pictures[name](found, widthOf(id), state));
  }
}

const learning = new Learning(data, change);
$("show").onchange = (event) => change("show", event.target.value);
$("controls").onsubmit = $("learning-controls").onsubmit = (event) => event.preventDefault();
$("save").onclick = () => {
  const blob = new Blob([JSON.stringify(numbers(state, found))], { type: "application/json" });
  make("a", { href: URL.createObjectURL(blob), download: `longlag-${state.cell}.json` }).click();
};
$("link").onclick = async () => {
  await navigator.clipboard.writeText(location.href).then(
    () => ($("done").textContent = "The link is in the clipboard."),
    () => ($("done").textContent = `The link: ${location.href}`),
  );
};
addEventListener("popstate", () => {
  state = parse(location.hash);
  show();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (width === innerWidth) return; // a phone's address bar came or went
  width = innerWidth;
  later();
  learning.draw();
});

const wanted = state;
show();
typed(wanted.typed, (module, text) => {
  loaded.typed = module;
  const same = state.typed === text && state.cell === "typed";
  state = { ...state, ...(same ? {} : { bias: {}, param: {}, show: "" }), cell: "typed", typed: text };
  show();
});
globalThis.playground = { numbers: () => numbers(state, found), learning, state: () => state }; // for teachers and tests
