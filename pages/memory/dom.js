// Builds elements without ever parsing markup: every text becomes a text node.

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open", "readOnly"]);

function append(node, child) {
  if (child === null || child === undefined || child === false) return;
  if (Array.isArray(child)) child.forEach((item) => append(node, item));
  else node.append(child instanceof Node ? child : String(child));
}

function setProp(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (PROPERTIES.has(name)) node[name] = value;
  else if (name === "style") node.style.cssText = value;
  else node.setAttribute(name, value === true ? "" : String(value));
}

/** Makes an element; props starting with "on" are listeners. */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  append(node, children);
  for (const [name, value] of Object.entries(props || {})) setProp(node, name, value);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** Makes an SVG element. */
export function s(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  append(node, children);
  for (const [name, value] of Object.entries(props || {})) node.setAttribute(name, String(value));
  return node;
}

/** Replaces everything in a node. */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

let ids = 0;

/** An id nobody else uses. */
export function newId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}

export function button(label, onclick, kind = "text", props = {}) {
  return h("button", { type: "button", class: `btn btn-${kind}`, onclick, ...props }, label);
}

/** A label over its control; the control gets an id and the hint describes it. */
export function field(label, control, hint) {
  const id = newId("field");
  control.id = id;
  const hintNode = hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null;
  if (hintNode) control.setAttribute("aria-describedby", hintNode.id);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hintNode);
}
