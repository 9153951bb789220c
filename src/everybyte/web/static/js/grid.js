// Tables of the tabs.

import { h } from "./dom.js";

/** A table in a frame that scrolls by itself. Columns are [title, cell(row), isText]; a column whose every cell is empty is left out. */
export function grid(caption, columns, rows) {
  const cells = rows.map((row) => columns.map(([, cell]) => cell(row)));
  const kept = columns.map((_, index) => index).filter((index) => cells.some((row) => row[index] !== "" && row[index] !== null && row[index] !== undefined));
  const of = (index) => (columns[index][2] ? null : "n");
  return h(
    "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table", {}, h("caption", { class: "sr" }, caption),
      h("thead", {}, h("tr", {}, kept.map((index) => h("th", { scope: "col", class: of(index) }, columns[index][0])))),
      h("tbody", {}, cells.map((row) => h("tr", {}, kept.map((index) => h("td", { class: of(index) }, row[index]))))),
    ),
  );
}

/** A form whose button asks, with the place of its result. `run()` gives elements; while it runs the button waits. */
export function asking(title, fields, words, run) {
  const result = h("div", { "aria-live": "polite", class: "stack" });
  const button = h("button", { type: "submit" }, words);
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    result.replaceChildren(h("p", { class: "hint" }, "searching …"));
    try {
      result.replaceChildren(...(await run()));
    } catch (error) {
      result.replaceChildren(h("p", { class: "bad", role: "alert" }, error.path ? [h("code", {}, error.path), " "] : null, error.message));
    }
    button.disabled = false;
  };
  const form = h("form", { class: "panel stack", onsubmit: submit, novalidate: true }, h("h2", {}, title), h("div", { class: "asked" }, fields, button));
  return { element: h("div", { class: "stack" }, form, result), result };
}

/** A labelled field. */
export function labelled(words, input) {
  return h("label", { class: "asked-field" }, h("span", {}, words), input);
}
