// The text that `cell.source("js")` prints, as an object of its exports. The page carries these texts unchanged; a
// worker is given the texts that it needs.

export function load(text) {
  const names = [...text.matchAll(/^export (?:const|function) ([\w$]+)/gm)].map((match) => match[1]);
  return new Function(`${text.replaceAll(/^export /gm, "")}\nreturn { ${names.join(", ")} };`)();
}
