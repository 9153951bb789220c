// Every setting that the form of a job has, with its default and where that comes from. Built when it is opened first.

import { fill, h, uniqueId } from "./dom.js";
import { get, originOf, purpose, resolved, set } from "./job.js";
import { said } from "./language.js";
import { number, shown } from "./words.js";

/** The model is picked above, and the version of the form is no setting. */
const ELSEWHERE = /^(model(\.|$)|everybyte$)/;

export class AllSettings {
  #store;
  #schema;
  #rows = [];
  #built = null;
  #last = [];

  constructor(store, schema) {
    this.#store = store;
    this.#schema = schema;
    this.search = h("input", { type: "search", placeholder: "find a setting", "aria-label": "Find a setting", oninput: () => this.#filter() });
    this.list = h("div", { class: "settings" });
    this.element = h(
      "details", { class: "fold", ontoggle: () => this.show(...this.#last) },
      h("summary", {}, "All settings"), this.search, this.list,
    );
  }

  show(job, answer) {
    this.#last = [job, answer];
    if (!this.element.open || !job) return;
    if (this.#built !== purpose(job)) this.#build(purpose(job));
    for (const row of this.#rows) row.show(job, answer);
  }

  #build(word) {
    this.#built = word;
    const other = word === "train" ? "serve" : "train";
    const wanted = this.#schema.filter(({ key }) => !key.startsWith(`${other}.`) && !ELSEWHERE.test(key));
    this.#rows = wanted.map((setting) => this.#row(setting));
    const sections = grouped(this.#rows, sectionOf);
    fill(this.list, [...sections].map(([title, rows]) => h("section", {}, h("h3", {}, title), rows.map((row) => row.element))));
    this.#filter();
  }

  #row(setting) {
    const id = uniqueId("setting");
    const control = CONTROLS[setting.kind] ?? CONTROLS.text;
    const input = control.make(setting, { id, "aria-describedby": `${id}-about`, onchange: () => this.#set(setting, control.read(input)) });
    const origin = h("span", { class: "origin" });
    const about = h("p", { class: "hint", id: `${id}-about` }, setting.meaning ? `${setting.meaning} ` : "", origin);
    const element = h("div", { class: "setting" }, h("label", { for: id }, lastOf(setting.key)), input, about);
    const show = (job, answer) => {
      const stated = get(job, setting.key);
      const value = resolved(answer, setting.key);
      if (document.activeElement !== input) control.write(input, stated);
      control.hint(input, value);
      element.classList.toggle("stated", stated !== undefined);
      const from = originOf(answer, setting.key);
      fill(origin, stated !== undefined ? "given" : from ? `${value === undefined || typeof value === "object" ? "" : `${shown(value)}: `}${from}` : "");
    };
    return { setting, element, show };
  }

  #set(setting, value) {
    this.#store.change(set(this.#store.job, setting.key, value), { from: "form" });
  }

  #filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { setting, element } of this.#rows) {
      const text = `${setting.key} ${setting.meaning}`.toLowerCase();
      element.hidden = !words.every((word) => text.includes(word));
    }
    for (const section of this.list.children) section.hidden = ![...section.querySelectorAll(".setting")].some((row) => !row.hidden);
  }
}

const byPlaceholder = (input, value) => (input.placeholder = value === undefined || typeof value === "object" ? "" : shown(value));

/** How each kind of setting is shown, read, written, and how its default is hinted at. */
const CONTROLS = {
  choice: {
    make: ({ values }, properties) => h("select", properties, h("option", { value: "" }, "default"), values.map((value) => h("option", { value }, value))),
    read: (input) => input.value,
    write: (input, value) => (input.value = value ?? ""),
    hint: (input, value) => (input.options[0].textContent = value === undefined || typeof value === "object" ? said("default") : said(`${shown(value)} (default)`)),
  },
  flag: {
    make: (_, properties) => h("select", properties, ["", "true", "false"].map((value) => h("option", { value }, value || "default"))),
    read: (input) => (input.value === "" ? undefined : input.value === "true"),
    write: (input, value) => (input.value = value === undefined ? "" : String(value)),
    hint: (input, value) => (input.options[0].textContent = said(typeof value === "boolean" ? `${value} (default)` : "default")),
  },
  whole: {
    make: ({ minimum, maximum }, properties) => h("input", { type: "number", step: 1, min: minimum, max: maximum, ...properties }),
    read: (input) => (input.value === "" ? undefined : Math.round(Number(input.value))),
    write: (input, value) => (input.value = value ?? ""),
    hint: (input, value) => (input.placeholder = typeof value === "number" ? number(value) : ""),
  },
  number: {
    make: ({ minimum, maximum }, properties) => h("input", { type: "number", step: "any", min: minimum, max: maximum, ...properties }),
    read: (input) => (input.value === "" ? undefined : Number(input.value)),
    write: (input, value) => (input.value = value ?? ""),
    hint: byPlaceholder,
  },
  list: {
    make: (_, properties) => h("input", { type: "text", spellcheck: "false", ...properties }),
    read: (input) => (input.value.trim() ? input.value.split(",").map((word) => asNumber(word.trim())) : undefined),
    write: (input, value) => (input.value = Array.isArray(value) ? value.join(", ") : (value ?? "")),
    hint: byPlaceholder,
  },
  mapping: {
    make: (_, properties) => h("input", { type: "text", spellcheck: "false", placeholder: '{"key": value}', ...properties }),
    read: (input) => asJson(input.value),
    write: (input, value) => (input.value = value === undefined ? "" : JSON.stringify(value)),
    hint: () => {},
  },
  text: {
    make: (_, properties) => h("input", { type: "text", spellcheck: "false", ...properties }),
    read: (input) => input.value,
    write: (input, value) => (input.value = value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : value),
    hint: byPlaceholder,
  },
};

function sectionOf({ setting }) {
  const [first, ...rest] = setting.key.split(".");
  return rest.length > 1 ? `${first}.${rest.slice(0, -1).join(".")}` : rest.length ? first : "job";
}

function lastOf(key) {
  return key.split(".").at(-1);
}

function asNumber(word) {
  return word !== "" && Number.isFinite(Number(word)) ? Number(word) : word;
}

/** What is no JSON goes on as text: the server says what is wrong with it. */
function asJson(text) {
  if (text.trim() === "") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function grouped(rows, nameOf) {
  const groups = new Map();
  for (const row of rows) groups.set(nameOf(row), [...(groups.get(nameOf(row)) ?? []), row]);
  return groups;
}
