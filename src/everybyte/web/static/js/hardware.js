// The tab Hardware: which GPUs and instances hold the job, how many, how fast and at what price.

import { post } from "./api.js";
import { h } from "./dom.js";
import { asking, grid, labelled } from "./grid.js";
import { gib, number } from "./words.js";

const ORDERS = [["price", "price of an hour"], ["cost", "cost of a token"], ["speed", "speed"], ["gpus", "number of GPUs"]];
const MOST_ROWS = 40;

export function make(store) {
  const only = h("input", { type: "text", placeholder: "nvidia consumer", spellcheck: "false" });
  const provider = h("input", { type: "text", placeholder: "aws gcp", spellcheck: "false" });
  const by = h("select", {}, ORDERS.map(([value, words]) => h("option", { value }, words)));
  const parts = ({ value }) => value.split(/[\s,]+/).filter(Boolean);
  const run = async () => shown(await post("/api/hardware", { job: store.job, only: parts(only), provider: parts(provider), by: by.value }), store);
  const fields = [labelled("Only with the words", only), labelled("Rented from", provider), labelled("Sorted by", by)];
  return asking("GPUs and instances that hold the job", fields, "Try all GPUs", run);
}

function shown(found, store) {
  if (!found.rows.length) return [h("p", { class: "panel" }, "No GPU of the catalogue holds this job.")];
  const rest = found.rows.length - MOST_ROWS;
  const small = found.too_small.length;
  return [
    h("section", { class: "panel stack" }, h("h2", {}, "GPUs that hold the job"), grid("GPUs that hold the job", columns(store), found.rows.slice(0, MOST_ROWS))),
    h("p", { class: "hint" }, found.prices),
    rest > 0 ? h("p", { class: "hint" }, `${rest} more hold it; words and providers narrow the list.`) : "",
    small ? h("p", { class: "hint" }, `${small} kinds of GPU are too small for it in any number.`) : "",
    ...Object.keys(found.refused).map((why) => h("p", { class: "hint", "data-free": true }, why)),
  ].filter(Boolean);
}

function columns(store) {
  const offer = ({ offers }) => offers.find(({ per_hour: price }) => price !== null);
  return [
    ["GPU", ({ gpu }) => h("code", {}, gpu), true],
    ["Job", (row) => h("button", { type: "button", "aria-label": `Open as the job: ${row.gpus} x ${row.gpu}`, onclick: () => store.open(row.job) }, "Open"), true],
    ["GPUs", ({ gpus }) => number(gpus, 0)],
    ["GiB of each", (row) => `${gib(row["peak.device"], 1)}/${gib(row.capacity, 1)}`],
    ["Fits", ({ verdict, chance }) => (verdict === "close" ? `~ ${number(100 * chance, 0)} %` : "✓")],
    ["tokens/s", (row) => (row.tokens_per_s ? number(row.tokens_per_s, 0) : "")],
    ["Per hour", (row) => (offer(row) ? `${offer(row).currency} ${number(offer(row).per_hour, 2)}` : "")],
    ["$/M tokens", (row) => (row.usd_per_million_tokens === null ? "" : number(row.usd_per_million_tokens, 2))],
    ["From", (row) => (offer(row) ? h("span", { "data-free": true }, `${offer(row).number} x ${offer(row).provider} ${offer(row).instance}`, offer(row).price_date ? `, ${offer(row).price_date}` : "") : ""), true],
  ];
}
