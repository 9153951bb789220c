// The first thing that an answer says: whether it fits, by how much, and how sure that is.

import { h } from "./dom.js";
import { gib, inUnit, number, size } from "./words.js";

/** A verdict: its kind (fits, close, over, unknown), a mark, a word, and the sentence behind it. */
export function verdictOf(answer) {
  const { hardware, headroom, fits, figures } = answer;
  if (!hardware) {
    const peak = figures["peak.device"] ?? figures["peak.allocated"] ?? 0;
    return { kind: "unknown", mark: "?", word: "No GPU selected", text: `needs ${size(peak)}; select a GPU to see whether it fits` };
  }
  const needed = hardware.capacity - headroom;
  const each = (answer.job.hardware.gpus ?? 1) > 1 ? "each " : "";
  const of = `${size(needed)} of ${gib(hardware.capacity, 1)} GiB device memory on ${each}${hardware.gpu}`;
  if (answer.verdict === "close") {
    const room = headroom < 0 ? `${size(-headroom)} over capacity` : `${size(headroom)} left`;
    return { kind: "close", mark: "~", word: "Close", text: `needs ${of}, ${room}; about ${number(100 * answer.chance, 0)} % of such runs fit` };
  }
  if (!fits && headroom >= 0) return { kind: "over", mark: "✗", word: "Does not start", text: answer.warnings[0] ?? `needs ${of}` };
  if (!fits) return { kind: "over", mark: "✗", word: "Does not fit", text: `needs ${of}: ${size(-headroom)} over capacity` };
  return { kind: "fits", mark: "✓", word: "Fits", text: `needs ${of}, ${size(headroom)} left` };
}

/** The verdict as a block. */
export function verdict(answer) {
  const { kind, mark, word, text } = verdictOf(answer);
  return h(
    "div", { class: `verdict ${kind}` },
    h("p", { class: "word" }, h("span", { class: "mark", "aria-hidden": "true" }, mark), " ", word), h("p", { class: "text" }, text),
    [rangeText(answer), served(answer), fast(answer)].filter(Boolean).map((line) => h("p", { class: "hint" }, line)),
  );
}

function rangeText({ range }) {
  const ends = range["peak.device"];
  return ends ? `90 % interval of the device memory: ${gib(ends[0], 1)} to ${size(ends[1])}.` : "";
}

/** What a server's cache holds. */
function served({ figures, job }) {
  const tokens = figures["kv.tokens"];
  const context = job.serve?.context;
  if (!tokens || !context) return "";
  return `KV cache: ${number(tokens, 0)} tokens, max concurrency ${number(figures["kv.concurrency"] ?? tokens / context, 1)}x at ${number(context, 0)} tokens per sequence.`;
}

/** Tokens a second of the job, and what most of a step is. */
function fast({ figures, time }) {
  if (!time?.length) return "";
  const total = time.reduce((sum, term) => sum + term.seconds, 0);
  const most = [...time].sort((a, b) => b.seconds - a.seconds)[0];
  const share = `most of a step: ${most.name}, ${number((100 * most.seconds) / total, 0)} %`;
  if (figures["step.time_s"]) {
    const peak = `${inUnit("TFLOP/s", figures["tflops_per_gpu"])}, ${inUnit("share", figures.mfu)} of the 16-bit peak`;
    return `Speed: ${inUnit("time", figures["step.time_s"])} a step, ${number(figures["tokens_per_s_per_gpu"], 0)} tokens/s per GPU (${peak}); ${share}.`;
  }
  return `Speed: ${number(figures["decode.tokens_per_s"], 0)} tokens/s per request, first token after ${inUnit("time", figures.ttft_s)}; ${share}.`;
}

/** The verdict in half a line, for the foot of a phone's screen. */
export function miniVerdict(answer) {
  const { kind, mark, word } = verdictOf(answer);
  const needed = answer.hardware ? `${gib(answer.hardware.capacity - answer.headroom, 1)} of ${size(answer.hardware.capacity)}` : "";
  return h("a", { href: "#answer", class: kind, tabindex: "-1" }, `${mark} `, word, h("span", {}, needed));
}

/** A refusal of the server in place of an answer. Where the job is not to blame, a button calls `again`. */
export function refusal(error, again) {
  const isServers = error.status === 0 || error.status >= 500;
  return h(
    "div", { class: "verdict refused", role: "alert" },
    h("p", { class: "word" }, h("span", { class: "mark", "aria-hidden": "true" }, "!"), " ", isServers ? "No answer" : "This job cannot be estimated"),
    h("p", { class: "text" }, error.path ? [h("code", {}, error.path), " "] : null, error.message),
    isServers ? h("button", { type: "button", onclick: again }, "Try again") : null,
  );
}
