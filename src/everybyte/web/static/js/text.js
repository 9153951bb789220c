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
  #text = "";

  constructor(store) {
    this.#store = store;
    const id = uniqueId("text");
    this.area = h("textarea", { id, rows: 16, spellcheck: "false", onpaste: (event) => this.#pasted(event), oninput: () => this.#edited() });
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
      this.#text = await jobText(job);
    } catch {
      this.#text = JSON.stringify(job, null, 2); // a job with a fault has no file yet, and can be mended here
    }
    this.area.value = this.#text;
  }

  /** What is far too long does not come into the field at all: a browser would be busy with it for seconds. */
  #pasted(event) {
    const { length } = event.clipboardData?.getData("text/plain") ?? "";
    if (length <= MOST) return;
    event.preventDefault();
    this.#refuse(tooLong(length));
  }

  #edited() {
    const { length } = this.area.value;
    if (length > MOST) {
      this.area.value = this.#text;
      this.#refuse(tooLong(length));
      return;
    }
    this.#text = this.area.value;
    this.apply.disabled = false;
    fill(this.message);
  }

  #refuse(words) {
    fill(this.message, h("span", { class: "bad" }, words));
  }

  async #apply() {
    const text = this.area.value;
    try {
      const { job } = await post("/api/read", { files: [{ name: nameFor(text), size: text.length, base64: toBase64(text) }] });
      if (!job) throw new Error("this is no job: it has neither train nor serve");
      this.apply.disabled = true;
      fill(this.message);
      this.#store.change(job);
    } catch (error) {
      this.#refuse(error.path ? `${error.path}: ${error.message}` : error.message);
    }
  }
}

function tooLong(length) {
  return `this text has ${size(length)}: no job file is larger than ${size(MOST)}`;
}

/** The ending tells the reader the language; a TOML file is one whose first setting has an equals sign. */
function nameFor(text) {
  if (text.trimStart().startsWith("{")) return "job.json";
  return /^\s*(\[|[\w.]+\s*=)/m.test(text.split("\n").find((line) => line.trim() && !line.trim().startsWith("#")) ?? "") ? "job.toml" : "job.yaml";
}
