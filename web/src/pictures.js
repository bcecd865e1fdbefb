// The pictures of a cell. Each takes what `analyse` found and a width, and gives a plot and one sentence that says
// what can be seen in it.
import * as Plot from "@observablehq/plot";

export const COLOUR = (k) => `var(--c${k % 7})`;
const FLOOR = 1e-12; // pictures of error flow end here, as those of longlag.flow
const percent = (value) => `${value >= 0.0995 ? Math.round(100 * value) : (100 * value).toPrecision(2)} %`;
const digits = (value) => (value === 0 ? "0" : Math.abs(value) < 0.001 || Math.abs(value) >= 1e5 ? value.toExponential(1) : value.toPrecision(3));

// A picture with a name for screen readers; its parts, which Plot labels "line" or "rule", have none.
export function frame(width, label, options) {
  const narrow = width < 420;
  const plot = Plot.plot({
    width, height: Math.max(190, Math.min(270, width * 0.58)), marginLeft: narrow ? 44 : 52, marginBottom: 36,
    marginRight: 14, ariaLabel: label, style: { background: "none", fontSize: "12px", overflow: "visible" }, ...options,
  }); // prettier-ignore
  for (const part of plot.querySelectorAll("g[aria-label]")) part.removeAttribute("aria-label");
  for (const picture of plot.matches("svg") ? [plot] : plot.querySelectorAll("svg[aria-label]")) picture.setAttribute("role", "img");
  return plot;
}

const median = (row) => {
  const sorted = [...row].sort((a, b) => a - b), n = sorted.length;
  return n % 2 ? sorted[(n - 1) / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
};

// Names a user can show over time, and where they stand in a step.
export function variables(cell) {
  const own = [["y", "output y"], ...cell.states.map((name) => [name, `state ${name}`])];
  return [...own, ...cell.gates.map((name) => [name, `net input ${name}`])];
}

export function activity({ cell, steps }, width, state) {
  const name = variables(cell).some(([key]) => key === state.show) ? state.show : "y";
  const row = (step) => step.found[`${name}_new`] ?? step.given[name];
  const units = Math.min(6, state.units);
  const lines = steps.flatMap((step, t) => Array.from({ length: units }, (_, j) => ({ t: t + 1, unit: j, v: row(step)[j] })));
  const reached = Math.max(...lines.map((line) => Math.abs(line.v)));
  return {
    text: `The first ${units} of ${state.units} units over ${steps.length} steps of noise; largest |${name}| ${digits(reached)}.`,
    plot: frame(width, `${name} of ${units} units over time`, {
      x: { label: "step t", domain: [1, steps.length] },
      y: { label: name, grid: true },
      marks: [
        Plot.ruleY([0], { strokeOpacity: 0.3 }),
        Plot.line(lines, { x: "t", y: "v", z: "unit", stroke: (d) => COLOUR(d.unit), strokeWidth: 1.4 }),
      ],
    }),
  };
}

export function flow({ flow: found, cell }, width) {
  const { log, logFactors, bound } = found, lags = log.length - 1;
  const shown = (values) => values.map((value, q) => ({ q, v: Math.exp(value) })).filter((d) => d.v >= FLOOR && d.v < 1e300);
  const norm = shown(log), limit = shown(bound ? log.map((_, q) => q * bound.log) : logFactors);
  const name = bound ? `bound ${bound.is}` : "bound Π‖A‖ along the run";
  const rate = Math.exp(log[lags] / lags);
  const regime = Math.abs(rate - 1) < 1e-3 ? "kept" : rate < 1 ? "vanishing" : "exploding";
  const low = Math.max(FLOOR, Math.min(1e-2, ...norm.map((d) => d.v)) / 3);
  const high = Math.min(1e30, Math.max(1e2, ...norm.map((d) => d.v)) * 30);
  const inside = (d) => d.v >= low && d.v <= high;
  return {
    text: log[lags] === -Infinity
      ? `Nothing is left of an error after ${norm.length} steps.`
      : `After ${lags} steps ${digits(Math.exp(log[lags]))} of an error is left: ${regime}, a factor of ${rate.toPrecision(3)} per step.`,
    regime,
    plot: frame(width, `Norm of the Jacobian product of ${cell.name} against the lag: ${regime}`, {
      x: { label: "lag q (steps back)", domain: [0, lags] },
      y: { type: "log", label: "‖∂state(T)/∂state(T−q)‖", domain: [low, high], grid: true, ticks: 5, tickFormat: ".0e" },
      color: { domain: ["norm", name], range: [COLOUR(0), COLOUR(1)], legend: true },
      marks: [
        Plot.ruleY([1], { strokeOpacity: 0.5 }),
        Plot.line(limit.filter(inside), { x: "q", y: "v", stroke: () => name, strokeDasharray: "5 3" }),
        Plot.line(norm, { x: "q", y: "v", stroke: () => "norm", strokeWidth: 2.4 }),
      ],
    }),
  };
}

export function eigen({ eigenvalues }, width, state) {
  const reach = Math.max(1.25, ...eigenvalues.map((value) => value.size * 1.1));
  const circle = Array.from({ length: 121 }, (_, k) => [Math.cos((k * Math.PI) / 60), Math.sin((k * Math.PI) / 60)]);
  const radius = Math.max(0, ...eigenvalues.map((value) => value.size));
  const outside = eigenvalues.filter((value) => value.size > 1).length;
  const size = Math.min(width, 330);
  return {
    text: `At step ${state.step} the largest of ${eigenvalues.length} eigenvalues has size ${radius.toPrecision(3)}; ${outside} outside the unit circle.`,
    plot: frame(size, `Eigenvalues of the Jacobian of step ${state.step}, largest size ${radius.toPrecision(3)}`, {
      height: undefined, aspectRatio: 1, x: { label: "real part", domain: [-reach, reach], ticks: 5 },
      y: { label: "imaginary part", domain: [-reach, reach], ticks: 5 }, grid: true,
      marks: [
        Plot.line(circle, { strokeOpacity: 0.6 }),
        Plot.dot(eigenvalues, {
          x: "re", y: "im", r: 4, fillOpacity: 0.75,
          fill: (d) => (d.size > 1 ? COLOUR(1) : COLOUR(0)), symbol: (d) => (d.size > 1 ? "triangle" : "circle"),
        }),
      ],
    }),
  }; // prettier-ignore
}

export function carousel({ carousel: found, cell }, width) {
  if (!found) return { text: `${cell.name} feeds nothing back: no error travels from step to step.` };
  const bands = (rows) =>
    rows.map((row, q) => ({ q, low: Math.min(...row), mid: median(row), high: Math.max(...row) })).filter((d) => Math.abs(d.mid) < 1e6);
  const cut = bands(found.cut), full = bands(found.full);
  const values = [...cut, ...full].flatMap((d) => [d.low, d.high]).filter((v) => Math.abs(v) < 1e4);
  const domain = [Math.max(-5, Math.min(0, ...values)), Math.min(10, Math.max(1.1, ...values))];
  const clamp = (v) => Math.max(domain[0], Math.min(domain[1], v));
  const names = ["net inputs cut, as in 1997", "nothing cut (median, range)"];
  const last = cut.at(-1).mid;
  const constant = cut.every((d) => d.low === 1 && d.high === 1);
  return {
    text: constant
      ? `With the cuts, ∂${found.of}(T)/∂${found.of}(T−q) is exactly 1 at every lag: the constant error carousel.`
      : `With the cuts, ${digits(last)} of an error of ${found.of} is left after ${cut.length - 1} steps (median of the units).`,
    plot: frame(width, `Derivative of ${found.of} through time, with and without cuts`, {
      x: { label: "lag q (steps back)", domain: [0, cut.length - 1] },
      y: { label: `∂${found.of}(T)/∂${found.of}(T−q)`, domain, grid: true },
      color: { domain: names, range: [COLOUR(2), COLOUR(0)], legend: true },
      marks: [
        Plot.areaY(full, { x: "q", y1: (d) => clamp(d.low), y2: (d) => clamp(d.high), fill: () => names[1], fillOpacity: 0.18 }),
        Plot.areaY(cut, { x: "q", y1: (d) => clamp(d.low), y2: (d) => clamp(d.high), fill: () => names[0], fillOpacity: 0.18 }),
        Plot.line(full, { x: "q", y: (d) => clamp(d.mid), stroke: () => names[1], strokeWidth: 1.8 }),
        Plot.line(cut, { x: "q", y: (d) => clamp(d.mid), stroke: () => names[0], strokeWidth: 2.6 }),
      ],
    }),
  };
}

// Contributions of steps (x) to units (y), as colours between two signs.
export function heat(rows, width, { label, x, y, marks = [] }) {
  const units = rows[0].length, values = [];
  for (let j = 0; j < units; j++) for (const row of rows) values.push(row[j]);
  const high = Math.max(1e-30, ...values.map(Math.abs));
  return frame(width, label, {
    x: { label: x, domain: [0.5, rows.length + 0.5] }, y: { label: y, domain: [units + 0.5, 0.5], ticks: Math.min(units, 8) },
    color: { type: "linear", scheme: "PuOr", domain: [-high, high], legend: true, label: null, tickFormat: ".2~g", ticks: 4, width: Math.min(220, width) },
    marks: [
      Plot.raster(values, { width: rows.length, height: units, x1: 0.5, x2: rows.length + 0.5, y1: 0.5, y2: units + 0.5, imageRendering: "pixelated" }),
      Plot.dot(marks, { x: (t) => t + 1, y: units + 0.5, dy: 6, symbol: "triangle", fill: COLOUR(1), r: 4 }),
    ],
  }); // prettier-ignore
}

export function memory({ memory: found, cell }, width) {
  if (!found) return { text: `${cell.name} has no state that adds up what each step writes, so there are no memory weights.` };
  const sizes = found.rows.map((row) => row.reduce((sum, v) => sum + Math.abs(v), 0));
  const all = sizes.reduce((sum, v) => sum + v, 0);
  const recent = sizes.slice(-10).reduce((sum, v) => sum + v, 0);
  return {
    text: `${found.of}(T) is a weighted sum of what each step wrote; the last ten steps make up ${percent(all ? recent / all : 0)} of it.`,
    plot: heat(found.rows, width, { label: `What each step contributes to ${found.of} at the end`, x: "step k that wrote", y: "unit" }),
  };
}

export function credit({ credit: rows, cell }, width) {
  if (!rows[0]?.length) return { text: `The output of ${cell.name} is not fed back: nothing to show.` };
  const lags = Math.max(...rows.map((row) => row.length));
  const values = [];
  for (let q = 0; q < lags; q++) for (const row of rows) values.push(q < row.length ? Math.log10(Math.max(row[q], 1e-12)) : NaN);
  const top = Math.max(...values.filter(Number.isFinite));
  const bottom = Math.max(top - 8, Math.min(...values.filter(Number.isFinite)));
  const total = rows.flat().reduce((sum, v) => sum + v, 0);
  const near = rows.flatMap((row) => row.slice(0, 10)).reduce((sum, v) => sum + v, 0);
  return {
    text: `${percent(near / total)} of all credit stays within ten steps.`,
    plot: frame(width, "Size of the gradient of the loss at each step with respect to earlier states", {
      x: { label: "step t of the loss", domain: [0.5, rows.length + 0.5] },
      y: { label: "lag q", domain: [lags - 0.5, -0.5] },
      color: { scheme: "cividis", domain: [bottom, top], legend: true, label: "log₁₀ of the gradient's norm", ticks: 4, width: Math.min(220, width) },
      marks: [Plot.raster(values, { width: rows.length, height: lags, x1: 0.5, x2: rows.length + 0.5, y1: -0.5, y2: lags - 0.5, imageRendering: "pixelated" })],
    }),
  }; // prettier-ignore
}
