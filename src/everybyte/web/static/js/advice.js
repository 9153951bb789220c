// What would make the job fit: single changes of it, each answered again. A click applies one.

import { h } from "./dom.js";
import { setAll, spread } from "./job.js";
import { size } from "./words.js";

const MOST = 3;

/** The best lines of advice; null where there are none. `apply(job)` goes on with a changed job. */
export function advice(job, answer, apply) {
  const rows = answer.advice.slice(0, MOST);
  if (!rows.length) return null;
  const title = answer.fits ? "What would make it safe" : "What would make it fit";
  return h(
    "section", { class: "panel advice", "aria-labelledby": "advice-title" },
    h("h2", { id: "advice-title" }, title),
    h("ol", {}, rows.map((row) => h("li", {}, line(row), h("button", { type: "button", onclick: () => apply(changed(job, row.change)) }, "Apply")))),
  );
}

function line(row) {
  const then = row.fits ? (row.verdict ?? "fits") : "still does not fit";
  return h("span", {}, h("code", {}, row.flags), h("span", { class: "hint" }, ` ${size(row["peak.device"])}, `, then, "; ", row.price, " "));
}

/** The job with a row's change; a name spoke of the job before. */
function changed(job, change) {
  const { name, ...rest } = job;
  return setAll(rest, spread(change));
}
