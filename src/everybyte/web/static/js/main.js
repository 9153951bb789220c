// The page: a state in the address, a form that changes it, and an answer that follows it.

import { advice } from "./advice.js";
import { ApiError, Newest, ask, post } from "./api.js";
import { comparison, startCompare, switcher } from "./compare.js";
import { fill, h, refill } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { exportMenu, share } from "./exports.js";
import { figures, grounds, warnings } from "./figures.js";
import { Fits } from "./fits.js";
import { Form } from "./form.js";
import { same } from "./job.js";
import { otherLanguages, said } from "./language.js";
import { ledger, rankOf } from "./ledger.js";
import { Measured } from "./measured.js";
import { Pictures, loadKatex } from "./pictures.js";
import { Store } from "./state.js";
import { Tabs } from "./tabs.js";
import { themeButton } from "./paint.js";
import { miniVerdict, refusal, verdict } from "./verdict.js";

const store = new Store({ jobs: [EXAMPLES[0].job], active: 0 });
const root = document.getElementById("answer");
const pictures = new Pictures();
const measured = new Measured();
const fits = new Fits();
const answering = new Newest();
const drawing = new Newest();
const marking = new Newest();

/** What was answered last, for each job of the state: the job, and the answer or the error. */
let answered = [];
/** False while a slider is dragged. */
let isSettled = true;
let words = {};
let form = null;

const place = {
  head: h("div", {}), verdict: h("div", { class: "verdicts", "aria-live": "polite" }), warnings: h("div", {}), advice: h("div", {}), ledger: h("div", {}), figures: h("div", {}), grounds: h("div", {}),
};

/** Answers the jobs that changed and shows them; then, when nothing newer waits, draws the pictures and marks the sliders. */
async function follow(isOld) {
  const { jobs, active } = store.state;
  const results = await Promise.all(jobs.map((job, index) => (same(job, answered[index]?.job) && answered[index].answer ? answered[index] : answerOf(job))));
  const compared = jobs.length === 2 && results.every(({ answer }) => answer) ? await compare(jobs) : null;
  if (jobs.length !== store.state.jobs.length) return;
  answered = results;
  form.show(store.job, results[active].answer);
  show(results, active, compared);
  if (isOld()) return;
  const { answer } = results[active];
  if (!answer) {
    pictures.clear();
    fits.clear(form.knobs);
    return;
  }
  fits.forget(jobs[active], form.knobs);
  const { knob, rank } = store.state;
  const several = answer.ranks.length > 1;
  const wanted = {
    job: jobs[active],
    names: ["card", "phases", ...(several ? ["ranks"] : []), "places"],
    rank: several ? rankOf(answer, rank).label : null,
  };
  drawing.run((newerWaits) => pictures.show(wanted, newerWaits));
  // Searches take the server longer than an answer, so there is one at a time, and none while a slider is dragged: answers must not wait for them.
  if (!isSettled) return;
  marking.run(async (newerWaits) => {
    await fits.mark(jobs[active], form.knobs, newerWaits);
    const isDrawn = form.knobs.some((one) => one.knob.key === knob && one.knob.unit !== "share");
    if (!newerWaits()) await pictures.showKnob(jobs[active], isDrawn ? knob : null, newerWaits);
  });
}

async function answerOf(job) {
  try {
    return { job, answer: await post("/api/estimate", job) };
  } catch (error) {
    return { job, error: error instanceof ApiError ? error : new ApiError("", error.message, 500) };
  }
}

/** The rows in which two jobs differ; null if they cannot be compared. */
async function compare([job, against]) {
  try {
    return await post("/api/compare", { job, against });
  } catch {
    return null;
  }
}

function show(results, active, compared) {
  const blocks = results.map(({ answer, error }) => (answer ? verdict(answer) : refusal(error, () => answering.run(follow))));
  const { job, answer } = results[active];
  refill(place.head, results.length === 2 ? switcher(store) : null);
  fill(place.verdict, results.length === 2 ? comparison(blocks, compared) : blocks);
  fill(document.getElementById("mini"), answer ? miniVerdict(answer) : null);
  document.title = `${answer?.name || answer?.model.name || "everybyte"}: ${said(answer ? (answer.verdict ?? "will it fit?") : "will it fit?")}`;
  fill(place.warnings, answer ? warnings(answer) : null);
  fill(place.advice, answer ? advice(job, answer, (changed) => store.change(changed)) : null);
  fill(place.figures, answer ? figures(answer, words) : null);
  measured.show(answer ? job : null);
  refill(place.grounds, answer ? grounds(answer) : null);
  const pick = (label) => store.update({ rank: label });
  refill(place.ledger, answer ? ledger(job, answer, rankOf(answer, store.state.rank), words, pick) : null);
}

function tools() {
  const compareButton = h("button", { type: "button", onclick: () => startCompare(store) }, "Compare");
  store.subscribe((state) => (compareButton.disabled = state.jobs.length === 2));
  compareButton.disabled = store.state.jobs.length === 2;
  const exporting = exportMenu(store, () => answered[store.state.active]?.answer, words.exports);
  fill(document.getElementById("tools"), compareButton, h("button", { type: "button", onclick: () => share(store) }, "Share"), exporting, languageButtons(), themeButton(() => answering.run(follow)));
}

function languageButtons() {
  return otherLanguages().map(({ code, name, choose }) => h("button", { type: "button", lang: code, onclick: choose }, name));
}

/** The words of index.html, which are there before any script. */
function speakTheFrame() {
  for (const element of document.querySelectorAll(".skip, header p")) element.textContent = said(element.textContent);
  for (const element of document.querySelectorAll("[aria-label], header [title]")) {
    for (const name of ["aria-label", "title"]) if (element.hasAttribute(name)) element.setAttribute(name, said(element.getAttribute(name)));
  }
}

/** Links to the answer go there by hand: the browser's way would put `#answer` in the place of the state that the address holds. */
function goToAnswer(event) {
  if (!event.target.closest?.('a[href="#answer"]')) return;
  event.preventDefault();
  root.focus({ preventScroll: true });
  root.scrollIntoView();
}

async function start() {
  const memory = h("div", {}, place.head, place.verdict, place.advice, place.warnings, pictures.element, place.ledger, place.figures, measured.element, place.grounds);
  let settings;
  try {
    speakTheFrame();
    [{ settings }, words] = await Promise.all([ask("/api/settings"), ask("/api/words")]);
  } catch (error) {
    fill(root, refusal(error, start));
    return;
  }
  const tabs = new Tabs(store, memory);
  fill(root, tabs.list, Object.values(tabs.panels));
  form = new Form(store, settings, document.getElementById("ask"));
  tools();
  form.show(store.job, null);
  store.subscribe((state, change) => {
    isSettled = change.settled;
    form.show(store.job, answered[store.state.active]?.answer);
    answering.run(follow);
    tabs.show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => answering.run(follow));
  answering.run(follow);
  loadKatex();
}

document.addEventListener("click", goToAnswer);
start();
