// The left side of the page: picker, front settings, sliders, all settings, and the job as text. It shows the active job and changes it.

import { fill, h, uniqueId } from "./dom.js";
import { FIELDS, KNOBS, METHODS, methodOf } from "./fields.js";
import { get, originOf, purpose, resolved, setAll } from "./job.js";
import { said } from "./language.js";
import { Picker } from "./picker.js";
import { AllSettings } from "./settings.js";
import { Slider } from "./slider.js";
import { JobText } from "./text.js";
import { shown } from "./words.js";

export class Form {
  #store;
  #schema;
  #front = { train: null, serve: null };
  #fields = [];
  #knobs = [];
  #purpose = null;

  /** `settings` are all that the form of a job has, as /api/settings lists them. */
  constructor(store, settings, root) {
    this.#store = store;
    this.#schema = new Map(settings.map((setting) => [setting.key, setting]));
    this.picker = new Picker(store);
    this.place = h("div", { class: "front" });
    this.all = new AllSettings(store, settings);
    this.text = new JobText(store);
    fill(root, this.picker.element, this.place, this.all.element, this.text.element);
    root.addEventListener("submit", (event) => event.preventDefault());
  }

  /** Shows the job, and what the answer says of values that the job leaves open. */
  show(job, answer) {
    const word = purpose(job);
    if (word !== this.#purpose) this.#turnTo(word);
    this.picker.show(job, answer);
    for (const field of this.#fields) field.show(job, answer);
    for (const { knob, slider } of this.#knobs) {
      slider.element.hidden = Boolean(knob.when && !knob.when(job));
      slider.show(get(job, knob.key) ?? resolved(answer, knob.key), get(job, knob.key) !== undefined);
    }
    this.all.show(job, answer);
    this.text.show(job);
  }

  /** The sliders that the active job has, each with its knob. */
  get knobs() {
    return this.#knobs.filter(({ slider }) => !slider.element.hidden);
  }

  #turnTo(word) {
    this.#purpose = word;
    this.#front[word] ??= this.#build(word);
    ({ fields: this.#fields, knobs: this.#knobs } = this.#front[word]);
    const method = word === "train" ? this.#fields[0].element : null;
    const rest = this.#fields.slice(method ? 1 : 0).map((field) => field.element);
    fill(this.place, method, this.#knobs.map(({ slider }) => slider.element), h("div", { class: "grid" }, rest));
  }

  #build(word) {
    const fields = FIELDS[word].map((field) => this.#select(field));
    if (word === "train") fields.unshift(this.#method());
    const knobs = KNOBS[word].map((knob) => {
      const slider = new Slider(knob, { move: (value, settled) => this.#moved(knob, value, settled) });
      slider.mark({});
      return { knob, slider };
    });
    return { fields, knobs };
  }

  #moved(knob, value, settled) {
    this.#store.update({ knob: knob.key }, { settled: false });
    this.#change({ [knob.key]: value }, settled);
  }

  #change(values, settled = true) {
    this.#store.change(setAll(this.#store.job, values), { settled, from: "form" });
  }

  #method() {
    const id = uniqueId("method");
    const options = Object.entries(METHODS).map(([value, method]) => h("option", { value }, method.title));
    const other = h("option", { value: "other", hidden: true }, "custom");
    const select = h("select", { id, onchange: () => this.#change(METHODS[select.value].values) }, options, other);
    const element = h("div", { class: "field" }, h("label", { for: id }, "Method"), select);
    return { element, show: (job) => (select.value = methodOf(job)) };
  }

  #select(field) {
    const id = uniqueId("field");
    const byDefault = h("option", { value: "" }, "default");
    const values = field.usual ?? this.#schema.get(field.key)?.values ?? [];
    const select = h(
      "select", { id, onchange: () => this.#change({ [field.key]: chosen(), ...(field.also ? { [field.also]: chosen() } : {}) }) },
      byDefault, values.map((value) => h("option", { value }, value)),
    );
    const chosen = () => values.find((value) => String(value) === select.value) ?? select.value;
    const element = h("div", { class: "field" }, h("label", { for: id }, field.label), select);
    const show = (job, answer) => {
      element.hidden = Boolean(field.when && !field.when(job));
      const stated = get(job, field.key);
      if (stated !== undefined && ![...select.options].some((option) => option.value === String(stated))) select.append(h("option", { value: stated }, stated));
      select.value = stated ?? "";
      const value = resolved(answer, field.key);
      byDefault.textContent = stated === undefined && value !== undefined ? said(`${shown(value)} (default)`) : said("default");
      select.title = originOf(answer, field.key) ?? this.#schema.get(field.key)?.meaning ?? "";
    };
    return { element, show };
  }
}
