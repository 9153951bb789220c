// A place that takes a log or a snapshot: dropped, chosen or pasted. The server reads it whole and keeps nothing.

import { post } from "./api.js";
import { toBase64 } from "./base64.js";
import { fill, h, uniqueId } from "./dom.js";
import { base64 } from "./drop.js";
import { size } from "./words.js";

const MOST = 32 * 2 ** 20;

/** A panel with `title` and `hint`; what is taken goes to `route`, whose answer `show(answer)` turns into elements. `pasted` lets text be pasted; `extra()` adds to the request. */
export function intake({ title, hint, route, show, pasted = false, extra = () => ({}) }) {
  const result = h("div", { "aria-live": "polite", class: "stack" });
  const send = async (file) => {
    fill(result, h("p", { class: "hint" }, "reading …"));
    try {
      fill(result, show(await post(route, { file, ...extra() })));
    } catch (error) {
      fill(result, h("p", { class: "bad", role: "alert" }, error.path ? [h("code", {}, error.path), " "] : null, error.message));
    }
  };
  const take = async (file) => {
    if (file.size > MOST) {
      fill(result, h("p", { class: "bad", role: "alert" }, `${file.name} has ${size(file.size)}: the page reads at most ${size(MOST)}, the command line any size`));
      return;
    }
    await send({ name: file.name, size: file.size, base64: await base64(file) });
  };
  const chosen = h("input", { type: "file", class: "sr", tabindex: "-1", "aria-label": title, onchange: () => chosen.files[0] && take(chosen.files[0]) });
  const id = uniqueId("pasted");
  const area = h("textarea", { id, rows: 5, spellcheck: "false", placeholder: "or paste the lines here" });
  const read = h("button", { type: "button", onclick: () => area.value.trim() && send({ name: "pasted.log", base64: toBase64(area.value) }) }, "Read the pasted text");
  const element = h(
    "div", { class: "stack" },
    h(
      "section", { class: "panel stack" }, h("h2", {}, title), h("p", { class: "hint" }, hint),
      h("div", {}, chosen, h("button", { type: "button", onclick: () => chosen.click() }, "Choose a file"), " ", h("span", { class: "hint" }, "or drop it anywhere on the page")),
      pasted ? [h("label", { for: id, class: "sr" }, "Text of the log"), area, h("div", {}, read)] : null,
    ),
    result,
  );
  return { element, take };
}
