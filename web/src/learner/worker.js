// Learning beside the page: messages start, pause and question a network.
import { randomLcg } from "d3-random";
import { load } from "../modules.js";
import { Network } from "./network.js";
import { TASKS } from "./tasks.js";

const SLICE = 40; // ms of learning between messages
let run = null;

function begin({ sources, experiment, task, gates, seed }) {
  const modules = Object.fromEntries(Object.entries(sources).map(([name, text]) => [name, load(text)]));
  const random = randomLcg((seed * 0.618034 + 0.1) % 1), network = new Network(modules, experiment.network);
  network.draw(() => 2 * random() - 1, { reach: experiment.reach, inputGateBias: gates });
  const size = experiment.window;
  run = {
    experiment, network, random, sample: TASKS[task], count: 0, seconds: 0, going: false, learned: false,
    errors: new Float64Array(size), wrongs: new Uint8Array(size), sum: 0, wrong: 0, curve: [], drift: [],
    every: 200,
  }; // prettier-ignore
  report();
}

// The paper's criterion: the last sequences, each judged by its error before its update.
function learnOne() {
  const { experiment, network, sample, random, errors, wrongs } = run;
  const sequence = sample(experiment.T, random), y = network.sequence(sequence);
  let mean = 0, largest = 0;
  for (let k = 0; k < y.length; k++) {
    const error = Math.abs(y[k] - sequence.target[k]);
    mean += error / y.length;
    largest = Math.max(largest, error);
  }
  network.descend(experiment.rate);
  const at = run.count++ % errors.length, isWrong = largest < experiment.bound ? 0 : 1;
  run.sum += mean - errors[at];
  run.wrong += isWrong - wrongs[at];
  errors[at] = mean;
  wrongs[at] = isWrong;
  if (run.count % run.every === 0) point();
  const full = run.count >= errors.length;
  if (full && run.wrong < experiment.wrong && (experiment.mean === null || run.sum / errors.length < experiment.mean)) run.learned = true;
}

function thin(rows) {
  return rows.filter((_, k) => k % 2 === 1);
}

// A point of the curves; when there are many, every second one is dropped.
function point() {
  const { network, count, errors, experiment, every } = run;
  const last = Math.min(every, errors.length);
  let sum = 0;
  for (let k = 1; k <= last; k++) sum += errors[(count - k + errors.length) % errors.length];
  run.curve.push([count, sum / last]);
  const states = network.new.s_new, T = experiment.T;
  run.drift.push([count, states.reduce((all, s) => all + Math.abs(s), 0) / states.length, slopeLeft(network), T]);
  if (run.curve.length > 400) {
    run.curve = thin(run.curve);
    run.drift = thin(run.drift);
    run.every *= 2;
  }
}

// h′(s)/h′(0), mean over the cells: ∂y/∂s of a step that writes nothing, at s and at 0.
function slopeLeft(network) {
  const n = network.cells, { cell, partials } = network.cellModule;
  const at = (s) => {
    const given = { i: new Float64Array(n).fill(-100), a: new Float64Array(n), o: new Float64Array(n), s };
    const found = Object.fromEntries(cell.partials.map(([o, v]) => [`d_${o}_d_${v}`, new Float64Array(n)]));
    partials(n, given, found);
    return found.d_y_d_s;
  };
  const here = at(network.new.s_new), zero = at(new Float64Array(n));
  return here.reduce((sum, slope, j) => sum + slope / zero[j], 0) / n;
}

function report() {
  const { network, count, seconds, sum, wrong, curve, drift, learned, going, errors, experiment, random, sample } = run;
  const seen = Math.min(count, errors.length), sequence = sample(experiment.T, random);
  postMessage({
    count, seconds, mean: seen ? sum / seen : null, wrong, seen, curve, drift, learned, going, weights: network.weightCount,
    sequence: { marks: sequence.marks, target: [...sequence.target], length: sequence.length }, watch: network.watch(sequence),
  }); // prettier-ignore
}

function slice() {
  if (!run?.going) return;
  const before = performance.now();
  do learnOne();
  while (!run.learned && performance.now() - before < SLICE);
  run.seconds += (performance.now() - before) / 1000;
  if (run.learned) run.going = false;
  report();
  if (run.going) setTimeout(slice, 0);
}

const ACTIONS = {
  begin,
  start() {
    if (run.going) return;
    run.learned = false;
    run.going = true;
    slice();
  },
  pause() {
    run.going = false;
    report();
  },
  // A fresh sequence, the weights and the gradients of its error: for files and tests.
  question() {
    const { network, sample, experiment, random } = run, sequence = sample(experiment.T, random);
    const output = [...network.sequence(sequence)];
    const { W, V, dW, dV } = network;
    const { x, length, target } = sequence;
    postMessage({ answer: { x: [...x], length, target: [...target], output, W: [...W], V: [...V], dW: [...dW], dV: [...dV] } });
  },
};

onmessage = ({ data }) => ACTIONS[data.action](data);
