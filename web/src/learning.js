// The learning network: its controls, its figures and its worker.
import * as Plot from "@observablehq/plot";
import { $, draw, make, slider, widthOf } from "./dom.js";
import { COLOUR, frame, heat } from "./pictures.js";

const TITLES = { adding: "adding problem, T = 50", multiplication: "multiplication problem, T = 50", order: "temporal order, T = 100" };
const DRAWN = 150; // ms between pictures
const whole = (value) => Math.round(value).toLocaleString("en");

function worker() {
  const text = $("worker").textContent;
  return new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
}

export class Learning {
  // `change(part, value)` as for the controls of a cell.
  constructor({ experiments, learner }, change) {
    this.experiments = experiments;
    this.sources = learner;
    this.change = change;
    this.worker = worker();
    this.last = null;
    this.drawn = 0;
    this.worker.onmessage = ({ data }) => (data.answer ? this.answer(data.answer) : this.show(data));
  }

  controls(state) {
    const task = make("select", { id: "task", onchange: (event) => this.change("task", event.target.value) },
      ...Object.entries(TITLES).map(([value, title]) => make("option", { value }, title)));
    task.value = state.task;
    const gates = state.gates.map((value, k) =>
      slider({ id: `gate-${k}`, name: `bias of input gate ${k + 1}`, min: -8, max: 2, step: 0.5, value,
        change: (v) => this.change("gates", state.gates.with(k, v)) }));
    this.go = make("button", { type: "button", id: "go", className: "main", onclick: () => this.toggle() }, "Learn");
    this.reset = make("button", { type: "button", id: "reset", onclick: () => this.begin(this.state, true) }, "Start again");
    $("learning-controls").replaceChildren(make("label", { htmlFor: "task" }, "Task ", task), ...gates, this.go, this.reset);
  } // prettier-ignore

  // A new network for the state; the same state keeps the network it has, unless asked.
  begin(state, anew = false) {
    const key = JSON.stringify([state.task, state.gates, state.seed]);
    this.state = state;
    if (key === this.key && !anew) return;
    this.key = key;
    this.controls(state);
    const { task, gates, seed } = state;
    this.worker.postMessage({ action: "begin", sources: this.sources, experiment: this.experiments[task], task, gates, seed });
  }

  start() {
    this.worker.postMessage({ action: "start" });
  }

  toggle() {
    this.worker.postMessage({ action: this.last?.going ? "pause" : "start" });
  }

  question() {
    return new Promise((resolve) => {
      this.answer = resolve;
      this.worker.postMessage({ action: "question" });
    });
  }

  show(found) {
    const steady = this.last?.going && found.going;
    this.last = found;
    if (steady && performance.now() - this.drawn < DRAWN) return;
    this.drawn = performance.now();
    this.go.textContent = found.going ? "Pause" : "Learn";
    const { window: size, bound, mean } = this.experiments[this.state.task];
    const facts = {
      "sequences seen": whole(found.count),
      "per second": found.seconds ? whole(found.count / found.seconds) : "–",
      [`mean error of the last ${whole(size)}`]: found.mean === null ? "–" : found.mean.toFixed(4),
      [`of these wrong (error ≥ ${bound})`]: found.seen ? whole(found.wrong) : "–",
      weights: whole(found.weights),
    };
    $("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    const goal = mean === null ? "" : ` and their mean error is below ${mean}`;
    const { wrong } = this.experiments[this.state.task], few = wrong === 1 ? "none is wrong" : `fewer than ${wrong} are wrong`;
    const said = found.learned ? `Learned after ${whole(found.count)} sequences, ${found.seconds.toFixed(1)} seconds: of the last ${whole(size)} ${few}${goal}.` : "";
    if ($("learned").textContent !== said) $("learned").textContent = said;
    this.draw();
  }

  draw() {
    const found = this.last;
    if (!found || $("learning").hidden) return;
    const visible = (id) => !$(id).hidden;
    const pictures = { error: curve, gates, states, written, drift };
    for (const [name, picture] of Object.entries(pictures)) {
      const id = `picture-${name}`;
      if (visible(id)) draw(id, picture(found, widthOf(id), this.experiments[this.state.task]));
    }
  }
}

function curve({ curve: points }, width, { bound, mean }) {
  if (points.length < 2) return { text: "The mean error of the sequences seen, once learning has begun." };
  const goal = mean ?? bound;
  return {
    text: `Mean |error| now ${points.at(-1)[1].toPrecision(2)}; the goal is ${goal} (dashed).`,
    plot: frame(width, "Mean error against the number of sequences", {
      x: { label: "sequences", tickFormat: "~s" }, y: { type: "log", label: "mean |error|", grid: true, ticks: 4, tickFormat: "~g" },
      marks: [Plot.ruleY([goal], { stroke: COLOUR(2), strokeDasharray: "5 3" }), Plot.line(points, { stroke: COLOUR(0), strokeWidth: 1.8 })],
    }),
  }; // prettier-ignore
}

const over = (rows, names) => names.flatMap((name, k) => rows.map((row, t) => ({ t: t + 1, v: row[k], name })));
const triangles = (marks, y) => Plot.dot(marks, { x: (t) => t + 1, y, symbol: "triangle", fill: COLOUR(1), r: 5 });

function gates({ watch, sequence }, width) {
  const n = watch.gates[0].length / 2, names = Array.from({ length: 2 * n }, (_, k) => `${k < n ? "input" : "output"} gate ${(k % n) + 1}`);
  const opened = sequence.marks.map((t) => Math.max(...watch.gates[t].slice(0, n)).toFixed(2));
  return {
    text: `Triangles: the marked steps. Widest input gate there: ${opened.join(" and ")}. Answer ${watch.output.map((v) => v.toFixed(2)).join(", ")}, wanted ${sequence.target.map((v) => v.toFixed(2)).join(", ")}.`,
    plot: frame(width, "Openings of the gates over a sequence", {
      x: { label: "step t", domain: [1, sequence.length] }, y: { label: "opening", domain: [0, 1.02], grid: true, ticks: 5 },
      color: { domain: names, range: names.map((_, k) => COLOUR(k < n ? k : k + 1)), legend: true },
      marks: [Plot.line(over(watch.gates, names), { x: "t", y: "v", stroke: "name", strokeWidth: 1.6, strokeDasharray: null }), triangles(sequence.marks, 0)],
    }),
  }; // prettier-ignore
}

function states({ watch, sequence }, width) {
  const names = watch.states[0].map((_, k) => `cell ${k + 1}`);
  const largest = Math.max(...watch.states.flat().map(Math.abs));
  return {
    text: `Largest |s| ${largest.toPrecision(2)}. A state that moves only at the triangles remembers only these steps.`,
    plot: frame(width, "Internal states of the memory cells over a sequence", {
      x: { label: "step t", domain: [1, sequence.length] }, y: { label: "s", grid: true },
      color: { domain: names, range: names.map((_, k) => COLOUR(k)), legend: true },
      marks: [Plot.ruleY([0], { strokeOpacity: 0.3 }), Plot.line(over(watch.states, names), { x: "t", y: "v", stroke: "name", strokeWidth: 1.8 }), triangles(sequence.marks, 0)],
    }),
  }; // prettier-ignore
}

function written({ watch, sequence }, width) {
  const size = (row) => row.reduce((sum, v) => sum + Math.abs(v), 0);
  const all = watch.written.reduce((sum, row) => sum + size(row), 0);
  const marked = sequence.marks.reduce((sum, t) => sum + size(watch.written[t]), 0);
  return {
    text: `${((100 * marked) / all).toFixed(0)} % of what the cells hold comes from ${sequence.marks.length === 1 ? "the marked step" : `the ${sequence.marks.length} marked steps`}.`,
    plot: heat(watch.written, width, { label: "What each step wrote into each memory cell", x: "step t", y: "cell", marks: sequence.marks }),
  };
}

function drift({ drift: points }, width) {
  if (points.length < 2) return { text: "Mean |s| at the end of sequences, once learning has begun." };
  const [, size, slope] = points.at(-1), names = ["mean |s|", "h′(s)/h′(0)"];
  const rows = points.flatMap(([count, s, left]) => [{ count, v: s, name: names[0] }, { count, v: left, name: names[1] }]);
  return {
    text: `Mean |s| is ${size.toPrecision(2)}. The slope of h is ${(100 * slope).toPrecision(2)} % of its largest value, and errors enter a cell through this slope.`,
    plot: frame(width, "Mean internal state and the slope of h while the network learns", {
      x: { label: "sequences", tickFormat: "~s" }, y: { label: null, grid: true, domain: [0, Math.max(1, ...points.map((p) => p[1]))] },
      color: { domain: names, range: [COLOUR(1), COLOUR(0)], legend: true },
      marks: [Plot.line(rows, { x: "count", y: "v", stroke: "name", strokeWidth: 1.8 })],
    }),
  }; // prettier-ignore
}
