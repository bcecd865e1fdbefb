// Small helpers to make elements.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { role, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  if (role) element.setAttribute("role", role);
  element.append(...children);
  return element;
}

// A slider with its name and value; `set` moves it without an event.
export function slider({ id, name, min, max, step, value, format = String, change }) {
  const shown = make("output", { htmlFor: id }, format(value));
  const input = make("input", { type: "range", id, min, max, step, value });
  const say = () => {
    shown.textContent = format(input.valueAsNumber);
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => {
    say();
    change(input.valueAsNumber);
  });
  say();
  return make("label", { className: "control" }, make("span", {}, name), shown, input);
}

export function draw(id, { plot, text }) {
  const figure = $(id);
  figure.querySelector(".plot").replaceChildren(...(plot ? [plot] : []));
  figure.querySelector(".reading").textContent = text;
  figure.classList.toggle("empty", !plot);
}

export const widthOf = (id) => Math.max(240, $(id).querySelector(".plot").clientWidth);
