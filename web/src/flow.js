// What happens to errors and memories along a run: the measurements of longlag.flow.
import { EigenvalueDecomposition, SingularValueDecomposition } from "ml-matrix";

const values = { computeLeftSingularVectors: false, computeRightSingularVectors: false, autoTranspose: true };

export const norm2 = (M) => (M.rows ? new SingularValueDecomposition(M, values).diagonal[0] : 0);

// ‖∂state(T)/∂state(T−q)‖₂ for q = 0 … T as natural logarithms, with the product of the factors' norms.
export function errorFlow(jacobians) {
  const n = jacobians[0].rows;
  const log = [0], logFactors = [0];
  const products = [null];
  let P = null, scaled = 0;
  for (let q = 1; q <= jacobians.length; q++) {
    const A = jacobians[jacobians.length - q];
    P = P ? P.mmul(A) : A.clone();
    const largest = Math.max(P.max(), -P.min());
    if (largest > 0 && Number.isFinite(largest)) {
      P.div(largest);
      scaled += Math.log(largest);
    }
    log.push(n ? Math.log(norm2(P)) + scaled : -Infinity);
    logFactors.push(logFactors[q - 1] + Math.log(norm2(A)));
    products.push({ P: P.clone(), scale: Math.exp(scaled) });
  }
  return { log, logFactors, products };
}

// A bound from the weights alone, where the library proves one: log of the factor per step, and its formula.
export function gainBound(gain, weights) {
  if (!gain) return null;
  const largest = gain.param
    ? Math.max(...weights.params[gain.param].map(Math.abs))
    : Math.max(...Object.values(weights.U).map(norm2));
  return { log: Math.log(gain.factor * largest), is: gain.is };
}

export function eigenvalues(A) {
  if (!A.rows) return [];
  const { realEigenvalues: re, imaginaryEigenvalues: im } = new EigenvalueDecomposition(A);
  return re.map((value, k) => ({ re: value, im: im[k], size: Math.hypot(value, im[k]) }));
}

// What an error of v(T) is at v(T−q), unit by unit: by the unit's own memory alone (with the cuts of 1997: net inputs
// pass nothing back), and with nothing cut.
export function carousel(layer, steps, products, v) {
  const { H, cell } = layer, at = cell.fed_back.indexOf(v) * H;
  const own = `d_${v}_d_${v}`;
  const cut = [new Float64Array(H).fill(1)], full = [new Float64Array(H).fill(1)];
  for (let q = 1; q <= steps.length; q++) {
    const kept = steps[steps.length - q].partials[own];
    cut.push(cut[q - 1].map((value, j) => value * (kept ? kept[j] : 0)));
    const { P, scale } = products[q];
    full.push(Float64Array.from({ length: H }, (_, j) => P.data[at + j][at + j] * scale));
  }
  return { cut, full };
}

// v(T) = Σ_k (what step k wrote) · (what was kept of it since): one row of contributions per step.
export function contributions(layer, steps, v) {
  const { H } = layer, own = `d_${v}_d_${v}`;
  const found = [], kept = new Float64Array(H).fill(1);
  for (let k = steps.length - 1; k >= 0; k--) {
    const { given, found: made, partials } = steps[k];
    found.unshift(Float64Array.from({ length: H }, (_, j) => (made[`${v}_new`][j] - partials[own][j] * given[v][j]) * kept[j]));
    for (let j = 0; j < H; j++) kept[j] *= partials[own][j];
  }
  return found;
}

// ‖∂½‖y(t)‖²/∂state(t−q)‖: entry [t][q], q = 0 … min(t, lags).
export function credit(layer, steps, jacobians, lags) {
  const { H, cell } = layer;
  return steps.map((step, t) => {
    let error = new Float64Array(layer.size);
    const y = cell.fed_back.indexOf("y");
    if (y < 0) return [];
    error.set(step.found.y_new, y * H);
    const row = [Math.hypot(...error)];
    for (let q = 1; q <= Math.min(t, lags); q++) {
      const A = jacobians[t - q + 1], back = new Float64Array(layer.size);
      for (let i = 0; i < A.rows; i++) {
        const line = A.data[i];
        for (let j = 0; j < A.columns; j++) back[j] += line[j] * error[i];
      }
      error = back;
      row.push(Math.hypot(...error));
    }
    return row;
  });
}
