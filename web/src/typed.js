// The box for a cell of one's own. `longlag play` derives the code; the page alone cannot.
import { $ } from "./dom.js";
import { load } from "./modules.js";

const EXAMPLE = `@cell(gates="a z")
def mine(a, z, y):
    """y(t) = σ(z)·y(t−1) + (1 − σ(z))·tanh(a)"""
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)`;

async function derive(text) {
  const answer = await fetch("cell", { method: "POST", body: text });
  const { source, error } = await answer.json();
  if (error) throw new Error(error);
  return load(source);
}

// `use(module, text)` shows a derived cell.
export function typed(text, use) {
  const here = document.documentElement.dataset.types === "yes";
  $("typed-hint").textContent = here
    ? "Written as in Python: gates are the net inputs W x(t) + U y(t−1) + b, states are kept from step to step. The library derives the rest."
    : "Typing a cell needs the library: start the page with “longlag play”. All other parts of this page work without it.";
  $("text").value = text || EXAMPLE;
  $("text").disabled = $("use").disabled = !here;
  const run = async () => {
    $("message").textContent = "";
    try {
      const module = await derive($("text").value);
      use(module, $("text").value);
    } catch (error) {
      $("message").textContent = `${error.message}. The pictures show the last cell that worked.`;
    }
  };
  $("use").onclick = run;
  $("text").onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  };
  return here && text ? run() : Promise.resolve();
}
