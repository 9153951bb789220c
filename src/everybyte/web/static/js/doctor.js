// The tab Doctor: a log goes in; why it ran out of memory, and what helps, come out.

import { h } from "./dom.js";
import { intake } from "./intake.js";
import { setAll, spread } from "./job.js";
import { size } from "./words.js";

export function make(store) {
  const withJob = h("input", { type: "checkbox", id: "doctor-job", checked: false });
  const found = intake({
    title: "Why did it run out of memory?", hint: "The output of a run, an error message or a kernel log. It is read on this server and not kept.",
    route: "/api/doctor", pasted: true, extra: () => (withJob.checked ? { job: store.job } : {}), show: ({ diagnosis, lines }) => shown(diagnosis, lines, store, withJob.checked),
  });
  const words = "This log is of the job on the left, which names the tensor and estimates each cure";
  found.element.firstChild.append(h("div", {}, withJob, " ", h("label", { for: withJob.id }, words)));
  return found;
}

function shown(diagnosis, lines, store, isOurs) {
  const changes = diagnosis.cures.filter(({ change }) => change && Object.keys(change).every((key) => /^(train|serve|hardware)\./.test(key)));
  return [
    h("section", { class: "panel stack" }, h("h2", {}, diagnosis.cause === "not_memory" ? "No memory fault" : "Diagnosis"), h("pre", { class: "log", tabindex: "0", "aria-label": "Diagnosis", "data-free": true }, lines.join("\n"))),
    isOurs && changes.length ? h("section", { class: "panel stack" }, h("h2", {}, "Apply to the job"), changes.map((cure) => button(cure, store))) : "",
  ].filter(Boolean);
}

function button({ change, says, saves_bytes: saved }, store) {
  const apply = () => store.open(setAll(store.job, spread(change)));
  return h("div", {}, h("button", { type: "button", onclick: apply }, h("code", {}, says)), saved ? [" ", h("span", { class: "hint" }, `saves ${size(saved)}`)] : null);
}
