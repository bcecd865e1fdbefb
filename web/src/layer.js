// A layer of H units of any cell along a sequence, as `longlag.Recurrent` has it, and the Jacobian of every step.
// The equations are the printed ones; the chain rule through the matrices is all that is done here.
import { EigenvalueDecomposition, Matrix } from "ml-matrix";
import { randomLcg, randomNormal, randomUniform } from "d3-random";

const arrays = (names, n) => Object.fromEntries(names.map((name) => [name, new Float64Array(n)]));

// Σ_j M[i][j] v[j], added to `into`
function add(into, M, v) {
  for (let i = 0; i < M.rows; i++) {
    const row = M.data[i];
    let sum = 0;
    for (let j = 0; j < M.columns; j++) sum += row[j] * v[j];
    into[i] += sum;
  }
}

const scaleColumns = (M, v) => new Matrix(M.to2DArray().map((row) => row.map((value, j) => value * v[j])));

export function radius(M) {
  const { realEigenvalues: re, imaginaryEigenvalues: im } = new EigenvalueDecomposition(M);
  return Math.max(...re.map((value, k) => Math.hypot(value, im[k])));
}

// Weights uniform in ±1/√H, as the library's; U of every gate has spectral radius `gain`.
export function drawWeights(cell, { units, inputs, gain, biases, params, seed }) {
  const uniform = randomUniform.source(randomLcg((seed * 0.618034 + 0.1) % 1))(-1, 1);
  const matrix = (columns) =>
    new Matrix(Array.from({ length: units }, () => Array.from({ length: columns }, () => uniform() / Math.sqrt(units))));
  const W = {}, U = {}, b = {};
  for (const gate of cell.input_gates) W[gate] = matrix(inputs);
  for (const gate of cell.sources.flatMap((source) => source.gates)) {
    const M = matrix(units);
    U[gate] = M.mul(gain / radius(M));
  }
  for (const gate of cell.gates) b[gate] = new Float64Array(units).fill(biases[gate] ?? 0);
  const p = {};
  for (const name of Object.keys(cell.params)) p[name] = new Float64Array(units).fill(params[name] ?? cell.params[name]);
  return { W, U, b, params: p };
}

export function drawInputs({ length, inputs, seed }) {
  const normal = randomNormal.source(randomLcg(((seed + 17) * 0.7548776662) % 1))();
  return Array.from({ length }, () => Float64Array.from({ length: inputs }, normal));
}

export class Layer {
  constructor(module, weights, units) {
    this.module = module;
    this.cell = module.cell;
    this.weights = weights;
    this.H = units;
    this.size = units * this.cell.fed_back.length;
  }

  // All steps: per step the arguments of the cell, its results, and what the sources of U found.
  run(x) {
    const { cell, module, H, weights } = this;
    const steps = [];
    let past = arrays(cell.fed_back, H);
    for (const x_t of x) {
      const given = { ...arrays(cell.gates, H), ...past, ...weights.params };
      for (const name of cell.per_step) given[name] = new Float64Array(H).fill(cell.noise.includes(name) ? 0 : 1);
      if (cell.inputs.includes("y") || cell.sources.some((source) => source.names.includes("y"))) given.y ??= past.y;
      for (const gate of cell.gates) given[gate].set(weights.b[gate]);
      for (const gate of cell.input_gates) add(given[gate], weights.W[gate], x_t);
      const read = cell.sources.map((source, k) => {
        const found = arrays(["read", ...source.names.map((name) => `d_read_d_${name}`)], H);
        module[`source_${k}`](H, given, found);
        for (const gate of source.gates) add(given[gate], weights.U[gate], found.read);
        return found;
      });
      const found = arrays(["y_new", ...cell.states.map((name) => `${name}_new`)], H);
      module.step(H, given, found);
      steps.push({ given, read, found });
      past = Object.fromEntries(cell.fed_back.map((name) => [name, found[`${name}_new`]]));
    }
    for (const step of steps) {
      step.partials = arrays(cell.partials.map(([o, v]) => `d_${o}_d_${v}`), H);
      module.partials(H, step.given, step.partials);
    }
    return steps;
  }

  // ∂net_g/∂v for every recurrent gate g and every v that is fed back.
  netJacobians(step) {
    const { cell, weights } = this;
    const of = {};
    cell.sources.forEach((source, k) => {
      for (const gate of source.gates) {
        of[gate] = {};
        for (const v of cell.fed_back) {
          let M = null;
          for (const name of source.names) {
            const slope = step.read[k][`d_read_d_${name}`];
            const inner = name === v ? scaleColumns(weights.U[gate], slope) : null;
            const early = of[name]?.[v] ? scaleColumns(weights.U[gate], slope).mmul(of[name][v]) : null;
            for (const term of [inner, early]) if (term) M = M ? M.add(term) : term;
          }
          if (M) of[gate][v] = M;
        }
      }
    });
    return of;
  }

  // A(t) = ∂state(t)/∂state(t−1), parts in the order of `fed_back`.
  jacobian(step) {
    const { cell, H } = this;
    const nets = this.netJacobians(step);
    const A = Matrix.zeros(this.size, this.size);
    cell.fed_back.forEach((out, r) => {
      cell.fed_back.forEach((v, c) => {
        const direct = step.partials[`d_${out}_d_${v}`];
        if (direct) for (let i = 0; i < H; i++) A.data[r * H + i][c * H + i] += direct[i];
        for (const gate in nets) {
          const slope = step.partials[`d_${out}_d_${gate}`], M = nets[gate][v];
          if (!slope || !M) continue;
          for (let i = 0; i < H; i++) {
            const row = A.data[r * H + i], from = M.data[i];
            for (let j = 0; j < H; j++) row[c * H + j] += slope[i] * from[j];
          }
        }
      });
    });
    return A;
  }
}
