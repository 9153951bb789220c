// Tabs above the answer. What a tab shows is loaded when it is first chosen; the job's own answer is the first of them.

import { fill, h } from "./dom.js";
import { refusal } from "./verdict.js";

const LOADED = {
  plan: () => import("./plan.js"), hardware: () => import("./hardware.js"), doctor: () => import("./doctor.js"), snapshot: () => import("./snapshot.js"), figures: () => import("./measured_log.js"),
};
const TITLES = { memory: "Memory", plan: "Plan", hardware: "Hardware", doctor: "Doctor", snapshot: "Snapshot", figures: "Compare with a log" };
const NAMES = Object.keys(TITLES);
const FIRST = NAMES[0];
const SNAPSHOT = /\.(pickle|pkl|pickle\.gz|pkl\.gz)$/i;
const LOG = /\.(log|out|err|csv)$/i;
/** May be a log, a command or a list of settings: the tab that is open decides. */
const TEXT = /\.txt$/i;

export class Tabs {
  #store;
  #tools = {};
  #buttons = {};

  /** `memory` is the panel of the job's own answer. */
  constructor(store, memory) {
    this.#store = store;
    this.list = h("div", { role: "tablist", class: "tabs", "aria-label": "Questions", onkeydown: (event) => this.#key(event) });
    this.panels = { memory };
    for (const name of NAMES) {
      this.#buttons[name] = h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => this.choose(name) }, TITLES[name]);
      this.panels[name] ??= h("div", {});
      for (const [key, value] of [["id", `panel-${name}`], ["role", "tabpanel"], ["aria-labelledby", `tab-${name}`]]) this.panels[name].setAttribute(key, value);
    }
    fill(this.list, Object.values(this.#buttons));
    document.addEventListener("drop", (event) => this.#dropped(event), { capture: true });
    this.show();
  }

  get #chosen() {
    return NAMES.includes(this.#store.state.tab) ? this.#store.state.tab : FIRST;
  }

  choose(name) {
    this.#store.update({ tab: name === FIRST ? undefined : name });
  }

  /** Shows the tab that the address names. */
  async show() {
    const chosen = this.#chosen;
    for (const name of NAMES) {
      this.#buttons[name].setAttribute("aria-selected", String(name === chosen));
      this.#buttons[name].tabIndex = name === chosen ? 0 : -1;
      this.panels[name].hidden = name !== chosen;
    }
    if (chosen !== FIRST) await this.#tool(chosen);
  }

  async #tool(name) {
    try {
      this.#tools[name] ??= LOADED[name]().then(({ make }) => make(this.#store));
      const tool = await this.#tools[name];
      if (!tool.element.isConnected) fill(this.panels[name], tool.element);
      tool.follow?.(this.#store.job);
      return tool;
    } catch (error) {
      delete this.#tools[name];
      fill(this.panels[name], refusal(Object.assign(error, { status: 0 }), () => this.show()));
      return null;
    }
  }

  /** Arrow keys, Home and End go from tab to tab. */
  #key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -NAMES.length, End: NAMES.length }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = NAMES.indexOf(this.#chosen);
    const next = Math.abs(step) === 1 ? (now + step + NAMES.length) % NAMES.length : step < 0 ? 0 : NAMES.length - 1;
    this.choose(NAMES[next]);
    this.#buttons[NAMES[next]].focus();
  }

  /** A log or a snapshot that is let go goes to the tab that reads it; what else is dropped goes to the form. */
  async #dropped(event) {
    const [file] = event.dataTransfer?.files ?? [];
    if (!file) return;
    const name = this.#for(file.name);
    if (!name) return;
    event.preventDefault();
    event.stopPropagation();
    document.body.classList.remove("dropping");
    this.choose(name);
    (await this.#tool(name))?.take(file);
  }

  #for(file) {
    if (SNAPSHOT.test(file)) return "snapshot";
    if (TEXT.test(file)) return ["doctor", "figures"].includes(this.#chosen) ? this.#chosen : null;
    if (!LOG.test(file)) return null;
    return this.#chosen === "figures" || /\.csv$/i.test(file) ? "figures" : "doctor";
  }
}
