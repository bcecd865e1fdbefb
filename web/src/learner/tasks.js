// Sequences of the experiments of 1997, with the readings that longlag.tasks takes by default.

const integer = (random, low, high) => low + Math.floor(random() * (high - low + 1)); // both inclusive

function pairs(T, random, value) {
  const length = integer(random, T, T + Math.floor(T / 10));
  const x = new Float64Array(2 * length);
  for (let t = 0; t < length; t++) x[2 * t] = value();
  const first = integer(random, 0, 9);
  let second = integer(random, 0, Math.floor(T / 2) - 3); // of 0 … T/2 − 2, without `first`
  second += second >= first ? 1 : 0;
  const marks = [first, second].filter((t) => t > 0); // the marker of the first pair stays −1
  for (const t of marks) x[2 * t + 1] = 1;
  x[1] = x[2 * length - 1] = -1;
  return { x, length, marks, values: marks.map((t) => x[2 * t]) };
}

export const TASKS = {
  adding(T, random) {
    const made = pairs(T, random, () => 2 * random() - 1);
    return { ...made, target: [0.5 + made.values.reduce((sum, v) => sum + v, 0) / 4] };
  },
  multiplication(T, random) {
    const made = pairs(T, random, random);
    return { ...made, target: [made.values.reduce((product, v) => product * v, 1)] };
  },
  // One-hot over a, b, c, d, E, B, X, Y: in which order did X and Y come?
  order(T, random) {
    const length = integer(random, T, T + Math.floor(T / 10));
    const x = new Float64Array(8 * length);
    const symbols = Array.from({ length }, () => integer(random, 0, 3));
    symbols[0] = 4;
    symbols[length - 1] = 5;
    const marks = [integer(random, T / 10, T / 5), integer(random, T / 2, (3 * T) / 5)];
    const drawn = marks.map(() => integer(random, 0, 1));
    marks.forEach((t, k) => (symbols[t] = 6 + drawn[k]));
    symbols.forEach((symbol, t) => (x[8 * t + symbol] = 1));
    const target = [0, 0, 0, 0];
    target[2 * drawn[0] + drawn[1]] = 1;
    return { x, length, marks, target, symbols };
  },
};
