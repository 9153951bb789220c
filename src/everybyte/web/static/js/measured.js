// The measured runs of the same kind as the job: what the ranges rest on. Asked for when a person opens them.

import { post } from "./api.js";
import { fill, h } from "./dom.js";
import { purpose } from "./job.js";
import { language } from "./language.js";
import { theme } from "./paint.js";
import { Picture } from "./pictures.js";

const SHOWN = /^(peak\.|static|weights|kv\.(pool|bytes|tokens)|compute_buffer|file_bytes)/;

export class Measured {
  #job = null;
  #shown = null;
  #picture = new Picture("measured");

  constructor() {
    this.place = h("div", { role: "status" });
    this.element = h(
      "details", { class: "panel fold", hidden: true, ontoggle: () => this.#open() },
      h("summary", {}, "Accuracy: measured runs of this kind"), this.place, this.#picture.element,
    );
  }

  show(job) {
    this.element.hidden = !job;
    this.#job = job;
    if (job) this.#open();
  }

  async #open() {
    const job = this.#job;
    const kind = JSON.stringify([purpose(job), job.train?.framework, job.serve?.engine, (job.hardware?.gpus ?? 1) > 1, theme()]);
    if (!this.element.open || this.#shown === kind) return;
    this.#shown = kind;
    this.#picture.hide();
    fill(this.place, h("p", { class: "hint" }, "loading …"));
    try {
      const { runs, groups, picture } = await post("/api/measured", { job, theme: theme(), lang: language() });
      if (this.#shown !== kind) return;
      fill(this.place, runs ? table(runs, groups) : h("p", { class: "hint" }, "There is no public measured run of this kind: the intervals come from runs of other kinds."));
      if (runs) await this.#picture.draw(picture, job);
    } catch (error) {
      this.#shown = null;
      fill(this.place, h("p", { class: "bad" }, error.message));
    }
  }
}

function table(runs, groups) {
  const rows = groups.filter(({ figure, answered }) => SHOWN.test(figure) && answered);
  const cell = (share, signed) => h("td", { class: "n" }, share === null ? "–" : `${signed && share > 0 ? "+" : ""}${(100 * share).toFixed(1)} %`);
  return [
    h("p", {}, `${runs} public runs of this kind. Error = (predicted − measured) / measured.`),
    h(
      "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Errors by group" },
      h(
        "table", {}, h("caption", { class: "sr" }, "Errors by group of runs"),
        h("thead", {}, h("tr", {}, ["Group", "Figure", "Runs", "Median", "90th percentile", "Bias", "In range"].map((title, index) => h("th", { scope: "col", class: index > 1 ? "n" : null }, title)))),
        h(
          "tbody", {},
          rows.map((row) =>
            h(
              "tr", {}, h("th", { scope: "row" }, row.group), h("td", {}, h("code", {}, row.figure)), h("td", { class: "n" }, row.answered),
              cell(row.median), cell(row.p90), cell(row.bias, true), cell(row.inside),
            ),
          ),
        ),
      ),
    ),
  ];
}
