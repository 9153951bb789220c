// The tab Compare with a log: figures that a start-up log, a training log or an nvidia-smi table states, beside those predicted for the job.

import { h } from "./dom.js";
import { grid } from "./grid.js";
import { intake } from "./intake.js";
import { gib, number, size } from "./words.js";

export function make(store) {
  return intake({
    title: "Measured against predicted", hint: "A start-up log of an engine, the output of a training run, or what nvidia-smi prints (table or CSV), held against the job on the left.",
    route: "/api/figures", pasted: true, extra: () => ({ job: store.job }), show: shown,
  });
}

/** What nvidia-smi calls used is the device's memory, which has one predicted figure. */
const SAME = { "device.used": "peak.device", "process.used": "peak.device" };

function shown({ engine, version, measured, predicted }) {
  const of = ({ figure }) => predicted?.[figure] ?? predicted?.[SAME[figure]];
  const value = (row, n) => (row.unit === "bytes" ? gib(n) : number(n));
  const columns = [
    ["Figure", ({ figure }) => h("code", {}, figure), true], ["Rank", ({ rank }) => rank ?? "", true], ["Line", ({ line }) => number(line, 0)],
    ["Measured", (row) => value(row, row.value)], ["Predicted", (row) => (of(row) === undefined ? "" : value(row, of(row)))],
    ["Measured − predicted", (row) => (of(row) === undefined ? "" : difference(row, of(row)))],
  ];
  return h(
    "section", { class: "panel stack" }, h("h2", {}, "Figures of the log"), engine ? h("p", { class: "hint" }, h("code", {}, [engine, version].filter(Boolean).join(" "))) : null,
    h("p", { class: "hint" }, "Sizes in GiB."), grid("Figures of the log", columns, measured),
  );
}

function difference(row, expected) {
  const more = row.value - expected;
  const share = expected ? ` (${more < 0 ? "−" : "+"}${number((100 * Math.abs(more)) / expected, 1)} %)` : "";
  return `${more < 0 ? "−" : "+"}${row.unit === "bytes" ? size(Math.abs(more), 2) : number(Math.abs(more))}${share}`;
}
