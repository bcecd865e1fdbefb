// The six steps of docs/flow.md as a story. A step sets what the page shows and offers things to try.
import { $, make } from "./dom.js";

const plain = { bias: {}, param: {}, gain: 1.2, length: 100, units: 16, seed: 1, show: "", typed: "" };
const closed = (value) => ({ task: "multiplication", gates: [value, value] });

export const STEPS = [
  {
    title: "Errors vanish, or explode",
    text: [
      "An error travels back in time through one Jacobian per step, and these matrices are multiplied. If the product shrinks, the error vanishes; if the product grows, the error explodes.",
      "Move the recurrent gain, the spectral radius of U. Below 1 the error always dies in the long run. A little above 1 it still does: the slope of tanh takes away more than U adds. The dashed line is what can be proved, (γ‖U‖)^q.",
    ],
    figures: ["flow", "eigen"],
    state: { ...plain, cell: "elman", gain: 0.8 },
    tries: [0.8, 1.2, 2, 4].map((gain) => [`gain ${gain}`, { gain }]),
  },
  {
    title: "Who gets the credit",
    text: [
      "Every step has a loss, ½‖y(t)‖². Each column of the picture is one loss; going down is going back in time, and the colour is the size of the gradient there.",
      "Bright stays at the top: nearly all credit goes to the last few steps. Where the picture is dark, a long time lag would have to be learned, and nothing is left to learn it from.",
    ],
    figures: ["credit", "activity"],
    state: { ...plain, cell: "elman", gain: 1 },
    tries: [["gain 0.8", { gain: 0.8 }], ["gain 1.4", { gain: 1.4 }], ["a GRU", { cell: "gru" }], ["an LSTM with forget bias 3", { cell: "lstm", bias: { f: 3 } }]],
  },
  {
    title: "Forgetting can be proved",
    text: [
      "These units feed back only to themselves: n(t) = u·n(t−1) + a(t). What is left of an error after q steps is u^q, so the bound and the measurement are one line.",
      "A network that forgets can be replaced by one that looks at a window of the past. The closer |u| is to 1, the longer that window has to be.",
    ],
    figures: ["flow", "memory"],
    state: { ...plain, cell: "net_feedback", param: { u: 0.9 } },
    tries: [0.5, 0.9, 0.97, 1].map((u) => [`u = ${u}`, { param: { u } }]),
  },
  {
    title: "The carousel",
    text: [
      "The memory cell of 1997 adds: s(t) = s(t−1) + σ(i)·g(a). So ∂s(t)/∂s(t−1) = 1, and if net inputs pass no error back, an error stays exactly 1 at every lag. That is the constant error carousel.",
      "The blue line is the same derivative with nothing cut: the gates' own recurrence joins in. Compare with cells that leak.",
    ],
    figures: ["carousel", "flow"],
    state: { ...plain, cell: "lstm97", gain: 1 },
    tries: [
      ["LSTM of 1997", { cell: "lstm97", bias: {}, param: {} }],
      ["forget gate, bias 1", { cell: "lstm", bias: { f: 1 } }],
      ["forget gate, bias 4", { cell: "lstm", bias: { f: 4 } }],
      ["leaky, α = 10", { cell: "leaky", param: { alpha: 10 } }],
      ["Elman", { cell: "elman", bias: {}, param: {} }],
    ],
  },
  {
    title: "What the carousel costs: drift",
    text: [
      "A state that only adds up can run away. The inputs of the multiplication problem have one sign; with half-open input gates (bias 0) the states drift, h flattens, and no error can enter a cell any more.",
      "The remedy of 1997: start with the input gates nearly closed. Let the network learn with each bias and watch the drift.",
    ],
    figures: ["drift", "states"],
    learning: true,
    state: { ...plain, ...closed(0) },
    tries: [0, -3, -6].map((bias) => [`bias ${bias}`.replace("-", "−"), closed(bias), "start"]),
  },
  {
    title: "Where memory lives",
    text: [
      "The adding problem: two numbers in a long sequence are marked; their sum is asked for at the end. The network learns from the error at the end alone, sequence by sequence.",
      "When it has learned, look at the gates: they open at the marked steps (triangles) and stay closed otherwise. The memory cells hold the two numbers, and nothing else.",
    ],
    figures: ["gates", "written", "states", "error"],
    learning: true,
    state: { ...plain, task: "adding", gates: [-3, -6] },
    tries: [["Let it learn", {}, "start"], ["Temporal order instead", { task: "order", gates: [-2, -4] }, "start"]],
  },
];

// `go(state, action)` shows a state.
export function lecture(state, print, go) {
  const links = [["Explore", 0], ...STEPS.map((step, k) => [`${k + 1} ${step.title}`, k + 1])].map(([title, k]) => {
    const link = make("a", { href: print({ ...state, ...(STEPS[k - 1]?.state ?? {}), lecture: k }) }, title);
    if (k === state.lecture) link.setAttribute("aria-current", "page");
    return make("li", {}, link);
  });
  $("steps").replaceChildren(...links);
  const step = STEPS[state.lecture - 1], box = $("lecture");
  document.body.classList.toggle("story", Boolean(step));
  box.hidden = !step;
  for (const figure of document.querySelectorAll("#pictures > figure, .figures > figure")) {
    figure.hidden = Boolean(step) && !step.figures.includes(figure.id.replace("picture-", ""));
  }
  $("main").hidden = Boolean(step?.learning);
  $("learning").hidden = Boolean(step) && !step.learning;
  $("typed").hidden = Boolean(step);
  if (!step) return;
  const turn = (text, k) => make("button", { type: "button", className: "turn", onclick: () => go({ ...STEPS[k - 1]?.state, lecture: k }) }, text);
  const tries = step.tries.map(([text, change, action]) => make("button", { type: "button", onclick: () => go(change, action) }, text));
  const turns = [...(state.lecture > 1 ? [turn("← Back", state.lecture - 1)] : []), ...(state.lecture < 6 ? [turn("Next →", state.lecture + 1)] : [])];
  box.replaceChildren(
    make("h2", {}, `${state.lecture}. ${step.title}`),
    ...step.text.map((text) => make("p", {}, text)),
    make("div", { className: "tries" }, make("span", {}, "Try:"), ...tries, ...turns),
  );
} // prettier-ignore
