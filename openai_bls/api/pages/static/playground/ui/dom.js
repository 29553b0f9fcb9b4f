// Elements of the document: found by id, made with properties and children. Text never becomes HTML here.

export const byId = (id) => document.getElementById(id);

/** An element. Properties that begin with "on" are listeners, `data` is a record of data attributes; others are
 * properties where the element has them, and attributes where it has not. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svgElement(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** One of the symbols in index.html. */
export function symbol(name) {
  return svgElement("svg", { class: "symbol", "aria-hidden": "true" }, svgElement("use", { href: `#symbol-${name}` }));
}

/** A small button of a symbol alone. */
export function symbolButton(name, label, onclick) {
  return element("button", { type: "button", className: "button quiet small icon", title: label, "aria-label": label, onclick }, symbol(name));
}

/** Copies text and says so on the button for a moment. */
export async function copyText(text, button, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard without HTTPS, except on localhost: the old way, by a selection.
    const holder = element("textarea", { value: text, className: "unseen" });
    (button.closest("dialog") ?? document.body).append(holder);
    holder.select();
    document.execCommand("copy");
    holder.remove();
    button.focus();
  }
  done(true);
  setTimeout(() => done(false), 1500);
}
