// Everything that the pictures of a cell show, computed once for a state of the page.
import { Layer, drawInputs, drawWeights } from "./layer.js";
import { carousel, contributions, credit, eigenvalues, errorFlow, gainBound } from "./flow.js";

export const INPUTS = 3;
const LAGS = 60; // of the credit picture

export function analyse(module, gain, state) {
  const { cell } = module;
  const weights = drawWeights(cell, {
    units: state.units, inputs: INPUTS, gain: state.gain, biases: state.bias, params: state.param, seed: state.seed,
  }); // prettier-ignore
  const x = drawInputs({ length: state.length, inputs: INPUTS, seed: state.seed });
  const layer = new Layer(module, weights, state.units);
  const steps = layer.run(x);
  const finite = steps.every(({ found }) => Object.values(found).every((row) => row.every(Number.isFinite)));
  if (!finite) return { cell, weights, x, steps, finite };
  const jacobians = steps.map((step) => layer.jacobian(step));
  const flow = errorFlow(jacobians);
  const memory = cell.memories.find((name) => name !== "y") ?? cell.memories[0];
  const kept = cell.states.find((name) => cell.fed_back.includes(name)) ?? (cell.fed_back.includes("y") ? "y" : null);
  return {
    cell, weights, x, steps, finite, jacobians,
    flow: { log: flow.log, logFactors: flow.logFactors, bound: gainBound(gain, weights) },
    eigenvalues: eigenvalues(jacobians[Math.min(state.step, state.length) - 1]),
    carousel: kept && { of: kept, ...carousel(layer, steps, flow.products, kept) },
    memory: memory ? { of: memory, rows: contributions(layer, steps, memory) } : null,
    credit: credit(layer, steps, jacobians, LAGS),
  }; // prettier-ignore
}

// The same as plain numbers, for files and tests.
export function numbers(state, found) {
  const list = (part) => Object.fromEntries(Object.entries(part).map(([k, v]) => [k, v.to2DArray?.() ?? [...v]]));
  const { W, U, b, params } = found.weights;
  return {
    cell: found.cell.name, state: structuredClone(state),
    weights: { W: list(W), U: list(U), b: list(b), params: list(params) },
    inputs: found.x.map((row) => [...row]),
    results: found.steps.map((step) => list(step.found)),
    log_norm: found.flow?.log, log_factors: found.flow?.logFactors, bound: found.flow?.bound,
    eigenvalues: found.eigenvalues,
    carousel: found.carousel && {
      of: found.carousel.of, cut: found.carousel.cut.map((r) => [...r]), full: found.carousel.full.map((r) => [...r]),
    },
    memory: found.memory && { of: found.memory.of, rows: found.memory.rows.map((row) => [...row]) },
    credit: found.credit,
  }; // prettier-ignore
}
