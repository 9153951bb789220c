// What the page shows is this state, and all of it stands in the address: a link shares it, a bookmark keeps it, the back button returns to it.
// It stands behind the `#`, which browsers do not send: a shared job does not pass through any server's log.

import { fromBase64, toBase64 } from "./base64.js";

/** State: `jobs` (one, or two that are compared), `active` (which of them the form edits), `rank` (label of the kind of rank shown), `knob` (key drawn), `tab`. */
export class Store {
  #listeners = [];
  #settled;

  constructor(start) {
    this.start = start;
    this.state = decode(location.hash) ?? start;
    this.#settled = encode(this.state);
    addEventListener("popstate", () => this.#arrive());
    addEventListener("hashchange", () => this.#arrive());
  }

  get job() {
    return this.state.jobs[this.state.active];
  }

  /** Sees to it that the address holds the state, which it does not on a first visit. */
  stand() {
    if (!location.hash) history.replaceState(null, "", `#${encode(this.state)}`);
  }

  /** Calls `listener(state, change)` after every change; `change.settled` is false while a slider is dragged, `change.from` says who changed it. */
  subscribe(listener) {
    this.#listeners.push(listener);
  }

  /** Changes parts of the state. A settled change becomes an entry of the browser's history. */
  update(parts, { settled = true, from = "page" } = {}) {
    this.state = { ...this.state, ...parts };
    const text = encode(this.state);
    if (settled && text !== this.#settled) {
      this.#settled = text;
      history.pushState(null, "", `#${text}`);
    }
    this.#tell({ settled, from });
  }

  /** Puts another job in the place of the active one. */
  change(job, options) {
    const jobs = this.state.jobs.map((old, index) => (index === this.state.active ? job : old));
    this.update({ jobs }, options);
  }

  /** Puts another job in the place of the active one and shows its answer, whatever tab was open. */
  open(job) {
    this.update({ jobs: this.state.jobs.map((old, index) => (index === this.state.active ? job : old)), tab: undefined });
  }

  #arrive() {
    const state = decode(location.hash) ?? this.start;
    const text = encode(state);
    if (text === this.#settled && text === encode(this.state)) return;
    this.state = state;
    this.#settled = text;
    this.#tell({ settled: true, from: "address" });
  }

  #tell(change) {
    for (const listener of this.#listeners) listener(this.state, change);
  }
}

/** The state as text for an address: base64 of UTF-8 JSON, with letters that addresses leave alone. */
export function encode(state) {
  return toBase64(JSON.stringify(state)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The state of an address; null if there is none or it is damaged. */
export function decode(hash) {
  try {
    const state = JSON.parse(fromBase64(hash.replace(/^#/, "").replaceAll("-", "+").replaceAll("_", "/")));
    return isState(state) && encode(state) ? state : null; // what is nested too deep to be written again is no state
  } catch {
    return null;
  }
}

function isState(state) {
  const jobs = state?.jobs;
  const areJobs = Array.isArray(jobs) && (jobs.length === 1 || jobs.length === 2) && jobs.every((job) => job && typeof job === "object" && !Array.isArray(job));
  return areJobs && Number.isInteger(state.active) && state.active >= 0 && state.active < jobs.length;
}
