// What the page shows, as plain data; all of it is in the address, so that a link shows the same.

export const START = {
  cell: "elman", gain: 1.2, bias: {}, param: {}, units: 16, length: 100, seed: 1, step: 50, show: "",
  lecture: 0, task: "adding", gates: [-3, -6], typed: "",
}; // prettier-ignore
const NUMBERS = { gain: [0, 5], units: [2, 32], length: [5, 200], seed: [0, 999], step: [1, 200], lecture: [0, 6] };

const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));

export function print(state) {
  const query = new URLSearchParams();
  for (const key of ["cell", ...Object.keys(NUMBERS), "show", "task", "typed"]) {
    if (state[key] !== START[key]) query.set(key, state[key]);
  }
  for (const kind of ["bias", "param"]) {
    for (const [name, value] of Object.entries(state[kind])) query.set(`${kind}.${name}`, value);
  }
  if (`${state.gates}` !== `${START.gates}`) query.set("gates", state.gates);
  return query.size ? `#${query}` : "#";
}

// Numbers out of range are clamped, what is no number or unknown is left out.
export function parse(hash) {
  const state = { ...START, bias: {}, param: {} };
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const value = Number(text), [kind, name] = key.split(".");
    if (key in NUMBERS && text !== "" && Number.isFinite(value)) {
      state[key] = key === "gain" ? clamp(value, NUMBERS[key]) : Math.round(clamp(value, NUMBERS[key]));
    } else if (["cell", "show", "task", "typed"].includes(key)) state[key] = text;
    else if ((kind === "bias" || kind === "param") && name && Number.isFinite(value)) state[kind][name] = value;
    else if (key === "gates") {
      const list = text.split(",").map(Number);
      if (list.length === 2 && list.every(Number.isFinite)) state.gates = list.map((v) => clamp(v, [-8, 2]));
    }
  }
  return state;
}
