// The pictures of an answer. The server describes each once, in Vega-Lite; here they are drawn, and saved as SVG or PNG.

import { post } from "./api.js";
import { download, fill, h, toast } from "./dom.js";
import { fileName } from "./exports.js";
import { modelName } from "./job.js";
import { language } from "./language.js";
import { theme } from "./paint.js";

const KNOB = "knob";
const NAMES = ["card", "phases", "ranks", "places", KNOB];
const PNG_SCALE = 2;

/** A frame with one picture in it. */
export class Picture {
  #title = h("h2");
  #about = h("p", { class: "hint" });
  #place = h("div", { class: "picture" });
  #view = null;
  #spec = null;
  #job = null;

  constructor(name) {
    this.name = name;
    const save = h("span", { class: "save" }, this.#saver("svg"), this.#saver("png"));
    new ResizeObserver(() => this.#view && !this.element.hidden && fit(this.#view, this.#place.clientWidth)).observe(this.#place);
    this.element = h("figure", { class: "panel", hidden: true }, h("figcaption", {}, h("div", {}, this.#title, this.#about), save), this.#place);
  }

  /** Draws what the server describes. The picture's own title becomes the caption of its frame, where a long one can wrap. */
  async draw(spec, job) {
    await librariesAreThere();
    const { title, ...rest } = spec;
    const canvas = h("div");
    const framed = h("div", { role: "img", "aria-label": spec.description ?? title.text }, canvas);
    this.element.hidden = false;
    const width = this.#place.clientWidth;
    this.#place.style.minHeight = `${this.#place.offsetHeight}px`; // so that the page does not jump while a picture is exchanged
    this.#place.append(h("div", { class: "drawing" }, framed));
    const fitted = { ...rest, width, background: "transparent", padding: 2, autosize: { type: "fit-x", contains: "padding" } };
    // expressions are interpreted, never evaluated as code: the server's headers forbid `eval`
    const { view } = await globalThis.vegaEmbed(canvas, fitted, { actions: false, ast: true, expr: globalThis.vega.expressionInterpreter, renderer: "svg", tooltip: { theme: theme() } });
    await fit(view, width);
    canvas.querySelector("svg")?.setAttribute("aria-hidden", "true");
    this.#view?.finalize();
    [this.#view, this.#spec, this.#job] = [view, spec, job];
    this.#title.textContent = title.text;
    this.#about.textContent = [title.subtitle ?? []].flat().join(" ");
    fill(this.#place, framed);
    this.#place.style.minHeight = "";
  }

  hide() {
    this.element.hidden = true;
  }

  #saver(kind) {
    return h("button", { type: "button", class: "link", "aria-label": `${this.name}: save as ${kind.toUpperCase()}`, onclick: () => this.#save(kind) }, kind.toUpperCase());
  }

  /** Draws the picture anew as it stands in the specification, with its title and on its own background. */
  async #save(kind) {
    const file = fileName({ name: `${this.#job.name || modelName(this.#job)} ${this.name}` }, kind);
    const runtime = globalThis.vega.parse(globalThis.vegaLite.compile(this.#spec).spec, null, { ast: true });
    const view = new globalThis.vega.View(runtime, { expr: globalThis.vega.expressionInterpreter, renderer: "none" });
    if (kind === "svg") download(file, await view.toSVG(), "image/svg+xml");
    else download(file, await view.toImageURL("png", PNG_SCALE), "image/png");
    view.finalize();
  }
}

/** Gives a view its width; the columns of its legend follow it, so the height is known only when it has been laid out once more. */
async function fit(view, width) {
  await view.width(width).resize().runAsync();
  await view.resize().runAsync();
}

/** The pictures of one answer. */
export class Pictures {
  #pictures = NAMES.map((name) => new Picture(name));

  constructor() {
    this.element = h("div", { class: "pictures" }, this.#pictures.map(({ element }) => element));
  }

  /** Draws the pictures `names` of a job; of the others all but the one against a setting are hidden. `isOld()` says whether something newer waits. */
  async show({ job, names, rank }, isOld) {
    await this.#draw({ job, pictures: names, ...(rank ? { rank } : {}) }, this.#pictures.filter(({ name }) => name !== KNOB), isOld);
    this.element.dataset.drawn = String(Number(this.element.dataset.drawn ?? 0) + 1);
  }

  /** Draws memory against a setting, or hides that picture if there is none. It takes the server as long as a search. */
  async showKnob(job, knob, isOld) {
    const picture = this.#pictures.find(({ name }) => name === KNOB);
    if (knob) await this.#draw({ job, pictures: [], knob }, [picture], isOld);
    else picture.hide();
  }

  async #draw(asked, shown, isOld) {
    try {
      const { pictures } = await post("/api/charts", { ...asked, theme: theme(), lang: language() });
      for (const picture of shown) {
        if (isOld()) return;
        if (pictures[picture.name]) await picture.draw(pictures[picture.name], asked.job);
        else picture.hide();
      }
    } catch (error) {
      for (const picture of shown) picture.hide();
      if (error.status !== 400) toast(`The pictures could not be drawn: ${error.message}`);
    }
  }

  clear() {
    for (const picture of this.#pictures) picture.hide();
  }
}

/** Loads the drawing libraries, once; the verdict does not wait for them. */
function librariesAreThere() {
  vega ??= ["vega/vega.min.js", "vega-lite/vega-lite.min.js", "vega-interpreter/vega-interpreter.min.js", "vega-embed/vega-embed.min.js"].reduce(
    (before, file) => before.then(() => script(`/static/vendor/${file}`)), Promise.resolve(),
  );
  vega.catch(() => (vega = null)); // what could not be loaded is tried again at the next picture
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
