// The job as a file that can be read, changed and pasted.

import { post } from "./api.js";
import { toBase64 } from "./base64.js";
import { fill, h, uniqueId } from "./dom.js";
import { jobText } from "./exports.js";
import { size } from "./words.js";

/** A job file is text that a person writes; what is longer than this was pasted by mistake. */
const MOST = 4 * 2 ** 20;

export class JobText {
  #store;
  #job;

  constructor(store) {
    this.#store = store;
    const id = uniqueId("text");
    this.area = h("textarea", { id, rows: 16, spellcheck: "false", oninput: () => this.#edited() });
    this.apply = h("button", { type: "button", disabled: true, onclick: () => this.#apply() }, "Use this job");
    this.message = h("p", { class: "hint", role: "status" });
    this.element = h(
      "details", { class: "fold", ontoggle: () => this.show(this.#job) },
      h("summary", {}, "Job file"), h("label", { for: id, class: "hint" }, "YAML, JSON or TOML: change it, or paste one"), this.area, this.apply, this.message,
    );
  }

  async show(job) {
    this.#job = job;
    if (!this.element.open || !this.apply.disabled || !job) return;
    try {
      this.area.value = await jobText(job);
    } catch {
      this.area.value = JSON.stringify(job, null, 2); // a job with a fault has no file yet, and can be mended here
    }
  }

  #edited() {
    this.apply.disabled = false;
    fill(this.message);
  }

  async #apply() {
    const text = this.area.value;
    try {
      if (text.length > MOST) throw new Error(`this text has ${size(text.length)}: no job file is larger than ${size(MOST)}`);
      const { job } = await post("/api/read", { files: [{ name: nameFor(text), size: text.length, base64: toBase64(text) }] });
      if (!job) throw new Error("this is no job: it has neither train nor serve");
      this.apply.disabled = true;
      fill(this.message);
      this.#store.change(job);
    } catch (error) {
      fill(this.message, h("span", { class: "bad" }, error.path ? `${error.path}: ${error.message}` : error.message));
    }
  }
}

/** The ending tells the reader the language; a TOML file is one whose first setting has an equals sign. */
function nameFor(text) {
  if (text.trimStart().startsWith("{")) return "job.json";
  return /^\s*(\[|[\w.]+\s*=)/m.test(text.split("\n").find((line) => line.trim() && !line.trim().startsWith("#")) ?? "") ? "job.toml" : "job.yaml";
}
