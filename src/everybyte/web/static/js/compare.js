// Two jobs side by side: which settings differ, and which rows of the ledgers.

import { fill, h } from "./dom.js";
import { gib, shown, size, spoken } from "./words.js";

const LETTERS = ["A", "B"];

/** Which of the two jobs the form edits, and the way back to one. */
export function switcher(store) {
  const { jobs, active } = store.state;
  const radios = jobs.map((job, index) => {
    const radio = h("input", { type: "radio", name: "side", id: `side-${index}`, checked: index === active, onchange: () => store.update({ active: index, rank: null }) });
    return [radio, h("label", { for: radio.id }, `${LETTERS[index]}: ${job.name || "job"}`)];
  });
  const end = () => store.update({ jobs: [store.job], active: 0, rank: null });
  return h(
    "div", { class: "switcher" },
    h("fieldset", { class: "segments" }, h("legend", { class: "sr" }, "Job to edit"), radios),
    h("button", { type: "button", class: "link", onclick: end }, "End comparison"),
  );
}

/** Keeps the job as A and goes on with a copy of it as B. */
export function startCompare(store) {
  const { name, ...rest } = store.job;
  store.update({ jobs: [store.job, { ...(name ? { name: `${name} (changed)` } : {}), ...rest }], active: 1 });
}

/** Both verdicts, the settings that differ, and the rows that differ. `verdicts` are two blocks; `compared` is what /api/compare says, or null. */
export function comparison(verdicts, compared) {
  const place = h("section", { class: "comparison", "aria-label": "Comparison" });
  fill(
    place,
    h("div", { class: "sides" }, verdicts.map((block, index) => h("div", { class: "side" }, h("h2", {}, LETTERS[index]), block))),
    compared ? h("div", { class: "panel" }, h("h2", {}, "Differences"), settingsTable(compared.settings), rowsTable(compared)) : null,
  );
  return place;
}

function settingsTable(settings) {
  const changed = settings.filter(({ key }) => key !== "name");
  if (!changed.length) return h("p", { class: "hint" }, "The two jobs are the same. Change a setting: the form edits B.");
  const cell = (value) => h("td", { class: "n" }, value === null ? "–" : shown(value));
  return h(
    "table", { class: "changes" }, h("caption", { class: "sr" }, "Settings that differ"), head("Setting", "A", "B"),
    h("tbody", {}, changed.map(({ key, here, there }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, key)), cell(here), cell(there)))),
  );
}

function rowsTable({ rank: here, against: there, differences: rows }) {
  if (!rows.length) return null;
  const total = there.allocated - here.allocated;
  return h(
    "table", { class: "differences" }, h("caption", { class: "sr" }, "Rows that differ, in GiB"),
    head("Where", "A, GiB", "B, GiB", "B − A"),
    h(
      "tbody", {},
      rows.map((row) =>
        h(
          "tr", {}, h("th", { scope: "row" }, spoken(row.category), " ", h("code", {}, row.place)),
          h("td", { class: "n" }, gib(row.here)), h("td", { class: "n" }, gib(row.there)), h("td", { class: "n" }, signed(row.there - row.here)),
        ),
      ),
    ),
    h(
      "tfoot", {},
      h(
        "tr", {}, h("th", { scope: "row" }, `allocated, in ${spoken(here.peak_phase)}${here.peak_phase === there.peak_phase ? "" : ` and ${spoken(there.peak_phase)}`}`),
        h("td", { class: "n" }, gib(here.allocated)), h("td", { class: "n" }, gib(there.allocated)), h("td", { class: "n" }, signed(total)),
      ),
    ),
  );
}

function head(...titles) {
  return h("thead", {}, h("tr", {}, titles.map((title, index) => h("th", { scope: "col", class: index ? "n" : null }, title))));
}

function signed(bytes) {
  return `${bytes < 0 ? "−" : "+"}${size(Math.abs(bytes), 2)}`;
}
