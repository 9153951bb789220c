// The figures with their ranges, the notes of an answer, and the settings with their origins.

import { h } from "./dom.js";
import { gib, inUnit, number, shown } from "./words.js";

/** Sizes below this are shown in bytes. */
const SMALL = 2 ** 20;

/** The table of figures. `words.figures` says what each counts. */
export function figures(answer, words) {
  const rows = Object.entries(answer.figures).map(([name, value]) => {
    const about = words.figures?.[name] ?? {};
    const meaning = words.engines?.[answer.job.serve?.engine]?.[name] ?? about.meaning ?? "";
    const isSize = (about.unit ?? "bytes") === "bytes";
    const isSmall = isSize && value < SMALL;
    const write = isSize ? (n) => gib(n) : (n) => inUnit(about.unit, n);
    const ends = isSmall ? null : answer.range[name];
    const range = !ends ? "" : ends[0] === ends[1] ? "exact" : `${write(ends[0])} – ${write(ends[1])}`;
    return h(
      "tr", {},
      h("th", { scope: "row" }, h("code", {}, name), h("span", { class: "hint" }, meaning)),
      h("td", { class: "n", "data-range": range || null }, isSmall ? `${number(value)} B` : `${write(value)}${isSize ? " GiB" : ""}`),
      h("td", { class: "n" }, range),
    );
  });
  return h(
    "section", { class: "panel", "aria-labelledby": "figures-title" },
    h("h2", { id: "figures-title" }, "Figures"),
    h(
      "table", { class: "figures" }, h("caption", { class: "sr" }, "Figures with their 90 % interval"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Figure"), h("th", { scope: "col", class: "n" }, "Value"), h("th", { scope: "col", class: "n" }, "90 % interval"))),
      h("tbody", {}, rows),
    ),
  );
}

/** Warnings; null if there are none. */
export function warnings(answer) {
  return notes("Warnings", answer.warnings, "warnings");
}

/** What the answer takes for granted, and where every setting comes from. */
export function grounds(answer) {
  const rows = answer.settings.map(({ key, value, origin }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, key)), h("td", {}, shown(value)), h("td", {}, origin)));
  return [
    notes("Assumed", answer.assumptions, "assumed"),
    h(
      "details", { class: "panel fold" }, h("summary", {}, "Settings and their origin"),
      h(
        "table", { class: "origins" }, h("caption", { class: "sr" }, "Settings"),
        h("thead", {}, h("tr", {}, ["Setting", "Value", "Origin"].map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows),
      ),
    ),
  ];
}

function notes(title, lines, kind) {
  return lines.length ? h("section", { class: `panel notes ${kind}` }, h("h2", {}, title), h("ul", {}, lines.map((line) => h("li", {}, line)))) : null;
}
