// The controls of a cell: which cell, and a slider for everything that can be moved.
import { $, make, slider } from "./dom.js";

const LABELS = {
  elman: "Elman (tanh)", elman_relu: "Elman (ReLU)", rnn97: "conventional net of 1997 (logistic)", leaky: "leaky integrator",
  lstm97: "LSTM of 1997 (memory cells)", lstm: "LSTM", peephole_lstm: "LSTM with peepholes", coupled_lstm: "LSTM with coupled gates",
  gru: "GRU", gru_original: "GRU of 2014", mgu: "MGU", slstm: "sLSTM", fast_grnn: "FastGRNN", ind_rnn: "IndRNN",
  min_gru: "minGRU", min_lstm: "minLSTM", lru: "LRU", ctrnn: "CTRNN", cfc: "CfC", co_rnn: "coRNN", lem: "LEM",
  lif: "leaky integrate-and-fire", snn_leaky: "leaky (snnTorch)", snn_synaptic: "synaptic (snnTorch)", adaptive_lif: "adaptive threshold",
}; // prettier-ignore
const label = (name) => LABELS[name] ?? name.replaceAll("_", " ");
const two = (value) => `${+value.toFixed(2)}`;

// From 0 or below to well above where a parameter starts.
function range(start) {
  const reach = Math.max(1, Math.abs(start));
  return { min: start > 0 ? (start === 1 ? 0.05 : 0) : -2 * reach, max: start === 1 ? 20 : 2 * reach, step: 0.01 };
}

// `change(part, value)`: part is a key of the state, or ["bias", gate].
export function controls(groups, modules, state, change) {
  const { cell } = modules[state.cell];
  const chosen = make("select", { id: "cell", onchange: (event) => change("cell", event.target.value) });
  for (const [group, names] of Object.entries(groups)) {
    const options = names.filter((name) => modules[name]);
    if (options.length) chosen.append(make("optgroup", { label: group }, ...options.map((name) => make("option", { value: name }, label(name)))));
  }
  chosen.value = state.cell;
  const one = (key, name, min, max, step, format) =>
    slider({ id: key, name, min, max, step, value: state[key], format, change: (value) => change(key, value) });
  const set = (title, kind, names, rangeOf, valueOf) =>
    names.length
      ? [make("fieldset", {}, make("legend", {}, title), ...names.map((name) =>
          slider({ id: `${kind}-${name}`, name, ...rangeOf(name), value: valueOf(name), format: two, change: (value) => change([kind, name], value) })))]
      : []; // prettier-ignore
  const matrices = cell.sources.length > 0;
  $("controls").replaceChildren(
    make("label", { htmlFor: "cell" }, "Cell"), chosen,
    make("p", { className: "about" }, cell.about.replaceAll("`", "")),
    ...(cell.equations.length ? [make("div", { className: "equations" }, ...cell.equations.map((line) => make("div", {}, line)))] : []),
    ...(matrices ? [one("gain", "recurrent gain", 0, 5, 0.05, two)] : []),
    ...set(cell.gates.length > 1 ? "Biases of the gates" : "Bias", "bias", cell.gates, () => ({ min: -6, max: 6, step: 0.1 }), (name) => state.bias[name] ?? 0),
    ...set("Leak and other numbers of a unit", "param", Object.keys(cell.params), (name) => range(cell.params[name]), (name) => state.param[name] ?? cell.params[name]),
    make("fieldset", {}, make("legend", {}, "Run"),
      one("length", "length T", 5, 200, 1), one("units", "units", 2, 32, 1),
      slider({ id: "step", name: "step of the eigenvalues", min: 1, max: state.length, step: 1, value: Math.min(state.step, state.length), change: (value) => change("step", value) }),
      one("seed", "draw of weights and noise", 0, 99, 1)),
  ); // prettier-ignore
}
