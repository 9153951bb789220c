// A slider with a number beside it. The part of its way where the job fits is marked, and a button goes to the last value that fits.

import { fill, h, uniqueId } from "./dom.js";
import { position, stops } from "./fields.js";
import { number } from "./words.js";

/** A slider goes on to this many times the last value that fits, and at least so far. */
const REACH = 3;
const LEAST_END = { count: 8, tokens: 4096, share: 1 };

export class Slider {
  #all;
  #stops;
  #move;
  #share;
  #typing = false;
  #shown;
  /** What the hint says; null while it waits. */
  #hinted = "";

  /** `move(value, settled)` is called on every move; settled is false while the slider is dragged. */
  constructor(knob, { move }) {
    this.knob = knob;
    this.#all = stops(knob);
    this.#stops = this.#all;
    this.#move = move;
    this.#share = knob.unit === "share";
    const id = uniqueId("slider");
    this.range = h("input", {
      id, type: "range", min: 0, max: this.#stops.length - 1, step: 1, "aria-describedby": `${id}-hint`,
      oninput: () => this.#slid(false), onchange: () => this.#slid(true),
    });
    this.exact = h("input", {
      type: "number", inputmode: "numeric", min: this.#share ? 0.01 : 1, max: knob.most, step: this.#share ? 0.01 : 1, "aria-label": `${knob.label}, exact value`,
      oninput: () => (this.#typing = true), onchange: () => this.#typed(), onblur: () => (this.#typing = false),
    });
    this.track = h("div", { class: "track", "aria-hidden": "true" });
    this.hint = h("p", { class: "hint", id: `${id}-hint` });
    this.element = h("div", { class: "knob" }, h("label", { for: id }, knob.label), this.exact, h("div", { class: "way" }, this.track, this.range), this.hint);
  }

  /** Shows the value of a job; `stated` is false for a default. */
  show(value, stated) {
    this.element.classList.toggle("default", !stated);
    const known = typeof value === "number";
    this.range.value = known ? Math.round(position(this.#stops, value) * (this.#stops.length - 1)) : 0;
    this.range.setAttribute("aria-valuetext", known ? this.#word(value) : "not set");
    this.#shown = known ? value : "";
    if (!this.#typing) this.exact.value = this.#shown;
  }

  /** Says that the search for what fits is under way. */
  wait() {
    this.element.classList.remove("marked");
    this.track.style.backgroundImage = "none";
    if (this.#hinted === null) return;
    this.#hinted = null;
    fill(this.hint, "searching for the largest value that fits …");
  }

  /** Marks what fits: intervals [low, high] of values, `text` about them, and a value to go to. Nothing is marked where it is not known. */
  mark({ intervals = [], text = this.knob.hint ?? "", goTo = null }) {
    this.#reach(goTo);
    const parts = intervals.map(([low, high]) => [100 * position(this.#stops, low), 100 * position(this.#stops, high)]);
    const shades = parts.flatMap(([from, to]) => [`transparent ${from}%`, `var(--good) ${from}%`, `var(--good) ${to}%`, `transparent ${to}%`]);
    this.track.style.backgroundImage = shades.length ? `linear-gradient(to right, ${shades.join(", ")})` : "none";
    this.element.classList.toggle("marked", intervals.length > 0);
    const hinted = JSON.stringify([goTo, text]);
    if (hinted === this.#hinted) return; // the button keeps the focus of whoever pressed it
    this.#hinted = hinted;
    const go = goTo === null ? null : h("button", { type: "button", class: "link", onclick: () => this.#move(goTo, true) }, this.#word(goTo));
    fill(this.hint, go && goTo !== null ? ["fits up to ", go, text ? `: ${text}` : ""] : text);
  }

  /** Lets the slider end well beyond the last value that fits, so that the way to it is long enough to aim at. */
  #reach(goTo) {
    const value = Number(this.#shown) || 0;
    const end = goTo === null ? this.knob.most : Math.max(LEAST_END[this.knob.unit], REACH * goTo, 2 * value);
    this.#stops = this.#all.filter((stop, index) => index === 0 || this.#all[index - 1] < end);
    this.range.max = this.#stops.length - 1;
    this.range.value = Math.round(position(this.#stops, value) * (this.#stops.length - 1));
  }

  #slid(settled) {
    const value = this.#stops[Number(this.range.value)];
    this.exact.value = value;
    this.range.setAttribute("aria-valuetext", this.#word(value));
    this.#move(value, settled);
  }

  #typed() {
    this.#typing = false;
    const value = Number(this.exact.value);
    if (this.exact.value === "") this.#move(undefined, true);
    else if (value > 0) this.#move(this.#share ? value : Math.max(1, Math.round(value)), true);
    else this.exact.value = this.#shown;
  }

  #word(value) {
    return this.#share ? value.toFixed(2) : number(value, 0);
  }
}
