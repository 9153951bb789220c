// The pictures of an answer. The server describes each once, in Vega-Lite; here they are drawn, and saved as SVG or PNG.

import { post } from "./api.js";
import { download, fill, h, toast } from "./dom.js";
import { fileName } from "./exports.js";

const TITLES = {
  card: "On the card", phases: "Over the step", ranks: "Kinds of rank", places: "Where the bytes are", knob: "Against one setting",
};
const PNG_SCALE = 2;

export class Pictures {
  #frames = new Map();

  constructor() {
    this.element = h("div", { class: "pictures" });
    for (const name of Object.keys(TITLES)) this.#frames.set(name, this.#frame(name));
    fill(this.element, [...this.#frames.values()].map(({ figure }) => figure));
  }

  /** Draws the pictures of a job. `isOld()` says whether something newer waits. */
  async show({ job, rank, knob }, isOld) {
    try {
      const [{ pictures }] = await Promise.all([post("/api/charts", { job, theme: theme(), ...(rank ? { rank } : {}), ...(knob ? { knob } : {}) }), vegaIsThere()]);
      for (const [name, frame] of this.#frames) {
        if (isOld()) return;
        frame.figure.hidden = !pictures[name];
        if (pictures[name]) await this.#draw(frame, pictures[name], job);
      }
      this.element.dataset.drawn = String(Number(this.element.dataset.drawn ?? 0) + 1);
    } catch (error) {
      this.clear();
      if (error.status !== 400) toast(`The pictures could not be drawn: ${error.message}`);
    }
  }

  clear() {
    for (const { figure } of this.#frames.values()) figure.hidden = true;
  }

  #frame(name) {
    const place = h("div", { class: "picture" });
    const frame = { name, place, view: null, job: null };
    const save = (kind) => h("button", { type: "button", class: "link", "aria-label": `${TITLES[name]}: save as ${kind.toUpperCase()}`, onclick: () => this.#save(frame, kind) }, kind.toUpperCase());
    frame.figure = h("figure", { class: `panel ${name}`, hidden: true }, h("figcaption", {}, h("h2", {}, TITLES[name]), h("span", { class: "save" }, save("svg"), save("png"))), place);
    return frame;
  }

  async #draw(frame, spec, job) {
    const canvas = h("div", { role: "img", "aria-label": spec.description ?? TITLES[frame.name] });
    const fitted = { ...spec, width: "container", background: "transparent", autosize: { type: "fit-x", contains: "padding" } };
    frame.place.style.minHeight = `${frame.place.offsetHeight}px`; // so that the page does not jump while a picture is exchanged
    const hidden = h("div", { class: "drawing" }, canvas);
    frame.place.append(hidden);
    frame.view?.finalize();
    const { view } = await globalThis.vegaEmbed(canvas, fitted, { actions: false, renderer: "svg", ast: true, expr: globalThis.vega.expressionInterpreter, tooltip: { theme: theme() } });
    canvas.querySelector("svg")?.setAttribute("aria-hidden", "true");
    frame.view = view;
    frame.job = job;
    fill(frame.place, canvas);
    frame.place.style.minHeight = "";
  }

  async #save(frame, kind) {
    const name = fileName({ ...frame.job, name: `${frame.job.name || frame.job.model || "job"} ${frame.name}` }, kind);
    if (kind === "svg") download(name, await frame.view.toSVG(), "image/svg+xml");
    else download(name, await frame.view.toImageURL("png", PNG_SCALE), "image/png");
  }
}

/** The theme that is painted now. */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** Loads the drawing libraries, once; the verdict does not wait for them. */
function vegaIsThere() {
  vega ??= ["vega/vega.min.js", "vega-lite/vega-lite.min.js", "vega-interpreter/vega-interpreter.min.js", "vega-embed/vega-embed.min.js"].reduce(
    (before, file) => before.then(() => script(`/static/vendor/${file}`)), Promise.resolve(),
  );
  return vega;
}

let vega = null;

/** Loads the library that sets formulas; where it is missing they stay plain text. */
export function loadKatex() {
  document.head.append(h("link", { rel: "stylesheet", href: "/static/vendor/katex/katex.min.css" }));
  return script("/static/vendor/katex/katex.min.js").catch(() => {});
}

function script(source) {
  return new Promise((resolve, reject) => {
    document.head.append(h("script", { src: source, onload: resolve, onerror: () => reject(new Error(`${source} could not be loaded`)) }));
  });
}
