// The pictures of an answer. The server describes each once, in Vega-Lite; here they are drawn, and saved as SVG or PNG.

import { post } from "./api.js";
import { download, fill, h, toast } from "./dom.js";
import { fileName } from "./exports.js";
import { modelName } from "./job.js";
import { theme } from "./paint.js";

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

  /** Draws the pictures `names` of a job, and the one against `knob`. `isOld()` says whether something newer waits. */
  async show({ job, names, rank, knob }, isOld) {
    try {
      const asked = { job, pictures: names, theme: theme(), ...(rank ? { rank } : {}), ...(knob ? { knob } : {}) };
      const [{ pictures }] = await Promise.all([post("/api/charts", asked), vegaIsThere()]);
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
    const frame = { name, title: h("h2"), about: h("p", { class: "hint" }), place: h("div", { class: "picture" }), view: null, spec: null, job: null };
    const save = (kind) =>
      h("button", { type: "button", class: "link", "aria-label": `${TITLES[name]}: save as ${kind.toUpperCase()}`, onclick: () => this.#save(frame, kind) }, kind.toUpperCase());
    const caption = h("figcaption", {}, h("div", {}, frame.title, frame.about), h("span", { class: "save" }, save("svg"), save("png")));
    frame.figure = h("figure", { class: "panel", hidden: true }, caption, frame.place);
    return frame;
  }

  /** The picture's own title becomes the caption of its frame, where a long one can wrap. */
  async #draw(frame, spec, job) {
    const { title, ...rest } = spec;
    frame.title.textContent = title?.text ?? TITLES[frame.name];
    frame.about.textContent = [title?.subtitle ?? []].flat().join(" ");
    const canvas = h("div", { role: "img", "aria-label": spec.description ?? TITLES[frame.name] });
    frame.place.style.minHeight = `${frame.place.offsetHeight}px`; // so that the page does not jump while a picture is exchanged
    frame.place.append(h("div", { class: "drawing" }, canvas));
    const fitted = { ...rest, width: "container", background: "transparent", autosize: { type: "fit-x", contains: "padding" } };
    // expressions are interpreted, never evaluated as code: the server's headers forbid `eval`
    const { view } = await globalThis.vegaEmbed(canvas, fitted, { actions: false, ast: true, expr: globalThis.vega.expressionInterpreter, renderer: "svg", tooltip: { theme: theme() } });
    canvas.querySelector("svg")?.setAttribute("aria-hidden", "true");
    frame.view?.finalize();
    Object.assign(frame, { view, spec, job });
    fill(frame.place, canvas);
    frame.place.style.minHeight = "";
  }

  /** Draws the picture anew as it stands in the specification, with its title and on its own background. */
  async #save({ name, spec, job }, kind) {
    const file = fileName({ name: `${job.name || modelName(job)} ${name}` }, kind);
    const runtime = globalThis.vega.parse(globalThis.vegaLite.compile(spec).spec, null, { ast: true });
    const view = new globalThis.vega.View(runtime, { expr: globalThis.vega.expressionInterpreter, renderer: "none" });
    if (kind === "svg") download(file, await view.toSVG(), "image/svg+xml");
    else download(file, await view.toImageURL("png", PNG_SCALE), "image/png");
    view.finalize();
  }
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
