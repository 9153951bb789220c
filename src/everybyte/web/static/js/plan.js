// The tab Plan: a cluster goes in, ranked layouts and the Pareto front come out; each opens as the job.

import { post } from "./api.js";
import { h } from "./dom.js";
import { asking, grid, labelled } from "./grid.js";
import { gib, number } from "./words.js";

const OBJECTIVES = [["time", "time of a step"], ["cost", "cost of a token"], ["memory", "least memory"], ["tokens-per-dollar", "tokens per dollar"]];

export function make(store) {
  const gpus = h("input", { type: "text", inputmode: "numeric", placeholder: "64,128" });
  const objective = h("select", {}, OBJECTIVES.map(([value, words]) => h("option", { value }, words)));
  const fix = h("input", { type: "text", placeholder: "tp=8 recompute=none", spellcheck: "false" });
  const price = h("input", { type: "number", min: "0", step: "0.01", placeholder: "catalogue" });
  const run = async () => {
    const counts = gpus.value.split(/[\s,]+/).filter(Boolean).map(Number);
    const asked = {
      job: store.job, objective: objective.value, fix: fix.value.split(/\s+/).filter(Boolean), ...(counts.length ? { gpus: counts } : {}),
      ...(price.value ? { price: Number(price.value) } : {}),
    };
    return shown(await post("/api/plan", asked), store);
  };
  const fields = [labelled("GPUs", gpus), labelled("First comes", objective), labelled("What must stay", fix), labelled("USD per GPU hour", price)];
  const { element } = asking("Layouts of the job on a cluster", fields, "Search layouts", run);
  const follow = (job) => (gpus.placeholder = String(job.hardware?.gpus ?? "64,128"));
  return { element, follow };
}

function shown(found, store) {
  const parts = [];
  if (!found.plans.length) parts.push(h("p", { class: "panel" }, "No layout fits. More GPUs, a card with more memory, an adapter or shorter sequences need less."));
  else parts.push(h("section", { class: "panel stack" }, h("h2", {}, "Plans, best first"), grid("Plans, best first", columns(store), found.plans)));
  if (found.front.length > 1) {
    parts.push(h("section", { class: "panel stack" }, h("h2", {}, "Pareto front"), h("p", { class: "hint" }, "No other layout is better in time, memory and price at once."), grid("Pareto front", columns(store), found.front)));
  }
  if (found.deciding) parts.push(h("p", { class: "hint" }, `What would decide between the first two: measure the ${found.deciding}.`));
  parts.push(...found.notes.map((note) => h("p", { class: "hint" }, note)), ...found.rejected.map(rejected));
  parts.push(...[...new Set(found.prices.map(({ source }) => source).filter(Boolean))].map((source) => h("p", { class: "hint", "data-free": true }, source)));
  return parts;
}

function columns(store) {
  return [
    ["Layout", ({ layout }) => h("code", {}, words(layout)), true],
    ["Job", (plan) => h("button", { type: "button", "aria-label": `Open as the job: ${words(plan.layout)}`, onclick: () => store.open(plan.job) }, "Open"), true],
    ["s/step", (plan) => plan["step.time_s"].toPrecision(3)],
    ["GiB", (plan) => gib(plan["peak.device"], 1)],
    ["at most, GiB", (plan) => gib(plan["peak.device.high"], 1)],
    ["$/M tokens", (plan) => (plan.usd_per_million_tokens === null ? "" : number(plan.usd_per_million_tokens, 2))],
  ];
}

/** The choices that are not the usual ones. */
function words(layout) {
  const sizes = ["tp", "cp", "pp", "ep", "dp"].filter((key) => layout[key] > 1).map((key) => `${key} ${layout[key]}`);
  const rest = [layout.virtual > 1 ? `v ${layout.virtual}` : "", `mb ${layout.micro_batch}`, `recompute ${layout.recompute}`, layout.sharding, layout.precision, layout.offload === "none" ? "" : `offload ${layout.offload}`];
  return [`${layout.gpus} GPUs`, ...sizes, ...rest].filter((part) => part && part !== "none").join(" ");
}

function rejected(found) {
  const reasons = ["memory", "refused", "meshes"].flatMap((key) => Object.entries(found[key]));
  return h(
    "details", { class: "fold panel" }, h("summary", {}, `Why other layouts do not do: ${number(found.examined, 0)} legal ones of ${number(found.gpus, 0)} GPUs`),
    h("ul", { "data-free": true }, reasons.map(([why, count]) => h("li", {}, `${number(count, 0)}: `, h("span", {}, why)))),
  );
}
