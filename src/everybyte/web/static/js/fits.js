// Asks for every slider how far it can go, and marks it. What was asked once is kept: moving a slider does not change where it stops fitting.

import { post } from "./api.js";
import { set } from "./job.js";
import { number, size, spoken } from "./words.js";

const KEPT = 200;

export class Fits {
  #found = new Map();

  /** Marks each slider. `isOld()` says whether something newer waits. */
  async mark(job, knobs, isOld) {
    this.forget(job, knobs);
    for (const { knob, slider } of knobs) {
      if (isOld()) return;
      slider.mark(await this.#fit(nameOf(job, knob), job, knob));
    }
  }

  /** Takes away what the sliders say of another job, at once: the searches for this one take seconds. */
  forget(job, knobs) {
    for (const { knob, slider } of knobs) if (!this.#found.has(nameOf(job, knob))) slider.wait();
  }

  /** Takes the marks away where nothing is known of them. */
  clear(knobs) {
    for (const { slider } of knobs) slider.mark({});
  }

  async #fit(name, job, knob) {
    if (!this.#found.has(name)) {
      if (this.#found.size >= KEPT) this.#found.clear();
      try {
        this.#found.set(name, marked(await post("/api/fit", { job, grow: knob.key }), knob));
      } catch (error) {
        if (error.status !== 400) return {}; // the server is busy or away: the next change asks again
        this.#found.set(name, {});
      }
    }
    return this.#found.get(name);
  }
}

/** The job without the setting that is searched: the same for every value of it. */
function nameOf(job, knob) {
  return JSON.stringify([knob.key, set({ ...job, name: undefined }, knob.key, undefined)]);
}

/** What a slider shows of a search's result. */
function marked(result, knob) {
  if (result.intervals) return ofShare(result);
  if (result.value === null) return { intervals: [], text: `no value fits${reason(result.stop)}` };
  if (result.unlimited) return { intervals: [[0, knob.most]], text: "memory does not limit it" };
  const holes = result.holes.length ? `; not ${result.holes.slice(0, 3).map((hole) => number(hole)).join(", ")}` : "";
  return { intervals: [[0, result.value]], goTo: result.value, text: `${reason(result.stop).replace(/^: /, "")}${holes}` };
}

function ofShare({ intervals, below, above }) {
  if (!intervals.length) return { text: `no value works${above ? `: ${above}` : below ? `: ${below}` : ""}` };
  const ends = intervals.map(({ low, high }) => [low, high]);
  return { intervals: ends, text: `works from ${ends.map(([low, high]) => `${low.toFixed(2)} to ${high.toFixed(2)}`).join(" and from ")}` };
}

function reason(stop) {
  if (!stop) return "";
  const value = number(stop.value, 0);
  if (stop.refused) return `: ${value} is refused`;
  if (stop.why) return `: ${value} does not fit, ${stop.why}`;
  if (stop.short_by > 0) return `: ${value} is ${size(stop.short_by)} over capacity in ${spoken(stop.phase)}`;
  return "";
}
