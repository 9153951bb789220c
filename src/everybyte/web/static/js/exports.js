// What a person takes away: the job, the answer, the report.

import { post } from "./api.js";
import { download, h, toast } from "./dom.js";
import { language } from "./language.js";

/** The text of a job as a file. */
export async function jobText(job, format = "yaml") {
  return (await post("/api/job", { job, format })).text;
}

/** The menu of things to take away; `answer()` is the answer to the active job, `targets` the frameworks and engines in whose words it can be written. */
export function exportMenu(store, answer, targets) {
  const choices = [
    ["Job file (YAML)", async () => download(fileName(store.job, "yaml"), await jobText(store.job), "application/yaml")],
    ["Answer (JSON)", () => download(fileName(store.job, "json"), `${JSON.stringify(answer(), null, 2)}\n`, "application/json")],
    ["Report (HTML, opens offline)", async () => download(fileName(store.job, "html"), await post("/api/report", { job: store.job, lang: language() }), "text/html")],
  ];
  const menu = h("details", { class: "menu" }, h("summary", {}, "Export"));
  const take = async (make) => {
    menu.open = false;
    try {
      await make();
    } catch (error) {
      toast(error.message);
    }
  };
  const target = h("select", { "aria-label": "Framework or engine" }, targets.map((name) => h("option", { value: name }, name)));
  const written = h("div", { class: "export-to" }, target, h("button", { type: "button", onclick: () => take(() => writeFor(store.job, target.value)) }, "Export"));
  menu.append(h("div", { class: "menu-list" }, choices.map(([title, make]) => h("button", { type: "button", onclick: () => take(make) }, title)), written));
  document.addEventListener("click", (event) => menu.contains(event.target) || (menu.open = false));
  menu.addEventListener("keydown", (event) => event.key === "Escape" && ((menu.open = false), menu.firstChild.focus()));
  return menu;
}

/** The job's files in the words of a framework or engine; what it has no word for is told. */
async function writeFor(job, to) {
  const { files, left_out: leftOut } = await post("/api/export", { job, to });
  for (const [name, text] of Object.entries(files)) download(name, text, "text/plain");
  const lost = Object.keys(leftOut);
  if (lost.length) toast(`Not written, as ${to} has no word for it: ${lost.join(", ")}`);
}

/** A file name from the name of a job: `llama-3.1-8b-lora.yaml`. */
export function fileName(job, ending) {
  const name = String(job.name || job.model || "job").toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^[-.]+|[-.]+$/g, "");
  return `${name.slice(0, 60) || "job"}.${ending}`;
}

/** Copies the address, which holds the whole state; on a first visit too. */
export async function share(store) {
  store.stand();
  try {
    await navigator.clipboard.writeText(location.href);
    toast("Link copied: it holds the whole state of the page");
  } catch {
    toast("The link is in the address bar: it holds the whole state of the page");
  }
}
