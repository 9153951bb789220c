// The upper part of the form: which model, which card, how many of them, and what for.

import { ask } from "./api.js";
import { Combobox } from "./combobox.js";
import { readFiles } from "./drop.js";
import { fill, h, toast, uniqueId } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { modelName, purpose, set } from "./job.js";
import { count, size } from "./words.js";

const MOST_PROPOSALS = 30;

export class Picker {
  #store;

  constructor(store) {
    this.#store = store;
    const change = (path, value) => store.change(set(store.job, path, value));
    this.model = new Combobox({ label: "Model", placeholder: "search: llama 8b, qwen3 moe …", search: findModels, choose: (name) => this.#pickModel(name) });
    this.gpu = new Combobox({ label: "GPU", placeholder: "rtx-4090, h100, mi300x …", search: findGpus, choose: (name) => change("hardware.gpu", name) });
    const gpus = uniqueId("gpus");
    this.gpus = h("input", { id: gpus, type: "number", inputmode: "numeric", min: 0, max: 131072, onchange: () => change("hardware.gpus", whole(this.gpus.value)) });
    this.file = h("input", { type: "file", multiple: true, class: "sr", tabindex: -1, "aria-hidden": "true", onchange: () => this.#read(this.file.files, this.file) });
    this.dropped = h("p", { class: "hint", role: "status" });
    this.purposes = ["train", "serve"].map((word) =>
      h("input", { type: "radio", name: "purpose", id: `purpose-${word}`, value: word, onchange: () => this.#turnTo(word) }),
    );
    this.element = h(
      "div", { class: "picker" },
      h("div", { class: "chips", role: "group", "aria-label": "Examples" }, h("span", {}, "Try"), EXAMPLES.map((example) => this.#chip(example))),
      this.model.element,
      h("div", { class: "dropline" }, this.file, h("button", { type: "button", class: "link", onclick: () => this.file.click() }, "or choose a file"), " (or drop it anywhere): config.json, GGUF, safetensors, job"),
      this.dropped,
      h("div", { class: "card-line" }, this.gpu.element, h("div", { class: "field" }, h("label", { for: gpus }, "Count"), this.gpus)),
      h("fieldset", { class: "segments" }, h("legend", { class: "sr" }, "Train or serve"), this.purposes.map((radio) => [radio, h("label", { for: radio.id }, TITLES[radio.value])])),
    );
    this.#listenForDrops();
  }

  /** Shows what the active job says. */
  show(job, answer) {
    this.model.show(modelName(job));
    const gpu = job.hardware?.gpu;
    this.gpu.show(typeof gpu === "string" ? gpu : gpu?.name ?? (gpu?.memory_bytes > 0 ? size(gpu.memory_bytes) : ""));
    if (document.activeElement !== this.gpus) this.gpus.value = job.hardware?.gpus ?? "";
    this.gpus.placeholder = String(answer?.job.hardware?.gpus ?? 1);
    for (const radio of this.purposes) radio.checked = radio.value === purpose(job);
  }

  #chip({ title, job }) {
    return h("button", { type: "button", class: "chip", onclick: () => this.#store.change(job) }, title);
  }

  #pickModel(name) {
    fill(this.dropped);
    const job = { ...this.#store.job, model: name };
    delete job.name; // it spoke of the model before
    this.#store.change(job);
  }

  /** A job for the other purpose starts with what is alike in both. */
  #turnTo(word) {
    const { model, hardware } = this.#store.job;
    const start = word === "train" ? { framework: "trl", micro_batch: 1, seq_len: 2048, precision: "bf16-mixed" } : { engine: "vllm", context: 8192 };
    this.#store.change({ model, ...(hardware ? { hardware } : {}), [word]: start });
  }

  async #read(files, input) {
    if (!files.length) return;
    fill(this.dropped, "reading …");
    try {
      const { job, words } = await readFiles([...files], this.#store.job);
      this.#store.change(job);
      fill(this.dropped, words);
      toast(words);
    } catch (error) {
      fill(this.dropped, h("span", { class: "bad" }, error.path ? `${error.path}: ${error.message}` : error.message));
    }
    if (input) input.value = "";
  }

  #listenForDrops() {
    const over = (event) => {
      if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
      event.preventDefault();
      document.body.classList.toggle("dropping", event.type === "dragover");
      if (event.type === "drop") this.#read(event.dataTransfer.files);
    };
    for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, over);
  }
}

const TITLES = { train: "Train", serve: "Serve" };

function whole(text) {
  return text === "" ? undefined : Math.max(0, Math.round(Number(text)));
}

async function findModels(words) {
  const { models } = await ask(`/api/models?q=${encodeURIComponent(words)}&limit=${MOST_PROPOSALS}`);
  return models.map((row) => ({ value: row.name, text: row.name, hint: row.params ? count(row.params) : row.model_type }));
}

async function findGpus(words) {
  const { gpus } = await ask(`/api/gpus?q=${encodeURIComponent(words)}&limit=${MOST_PROPOSALS}`);
  return gpus.map((row) => ({ value: row.name, text: row.name, hint: `${size(row.capacity)}, ${row.vendor}` }));
}
