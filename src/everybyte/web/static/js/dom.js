// Makes elements, in the language of the page. Text only ever becomes text nodes and attributes, so nothing that a model is called can become markup.

import { said } from "./language.js";

/** An element with properties, `on...` listeners and children (nodes, texts, lists of them; null and false are left out). */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value" || name === "checked" || name === "disabled" || name === "open" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : SPOKEN.has(name) ? said(String(value)) : String(value));
  }
  element.append(...kept(children, AS_IT_IS.has(tag)));
  return element;
}

/** Puts these children in the place of all that an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...kept(children));
}

/** As `fill`, for what every answer draws anew: folds that were open stay open, and the focus stays on the element of the same id. */
export function refill(element, ...children) {
  const open = [...element.querySelectorAll("details")].map((fold) => fold.open);
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  fill(element, ...children);
  element.querySelectorAll("details").forEach((fold, index) => (fold.open ||= open[index] ?? false));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** An id that no other element has. */
export function uniqueId(word) {
  ids += 1;
  return `${word}-${ids}`;
}

/** Shows a short message at the foot of the page, which a screen reader reads out. */
export function toast(message) {
  const place = document.getElementById("toast");
  place.textContent = said(message);
  place.classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => place.classList.remove("shown"), 3000);
}

/** Hands a file to the person. */
export function download(name, content, type) {
  const url = typeof content === "string" && content.startsWith("data:") ? content : URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Attributes that people read or hear. */
const SPOKEN = new Set(["aria-label", "aria-valuetext", "placeholder", "title"]);

let ids = 0;
let toastTimer = 0;

/** Elements whose text is no language. */
const AS_IT_IS = new Set(["code", "i", "textarea"]);

function kept(children, asItIs = false) {
  const found = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return found.map((child) => (typeof child === "string" && !asItIs ? said(child) : child));
}
