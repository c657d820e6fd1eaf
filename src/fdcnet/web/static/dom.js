/* Elements, and numbers in sentences. */

export const $ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
export const tag = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const shape = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
export const rectangle = ([x0, y0, x1, y1], kind) =>
  shape("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0, class: kind });

/** Set a CSS variable from script: a style attribute would need a weaker content policy. */
export function style(element, name, value) {
  element.style.setProperty(name, value);
  return element;
}

export const percent = (fraction) => `${Math.round(100 * fraction)}\u00a0%`;
export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;
export const classCount = (number) => count(number, "class", "classes");
export const megabytes = (bytes) => `${Number((bytes / 1e6).toFixed(1))} MB`;
export const rounded = (value) => (value === null || value === undefined ? "–" : value.toFixed(0));
export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export function duration(seconds) {
  if (seconds < 5) return "a few seconds";
  return seconds < 100 ? `${Math.round(seconds)} seconds` : `${Math.round(seconds / 60)} minutes`;
}
