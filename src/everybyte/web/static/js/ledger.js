// The rows behind the numbers: by category at the peak, the largest first. A row opens its formula, the numbers put in, and its source.

import { post } from "./api.js";
import { fill, h, uniqueId } from "./dom.js";
import { gib, number, size, spoken } from "./words.js";

const OUTSIDE = "context";
/** Rows of a category that are shown at once; the rest come when they are asked for. */
const MOST_ROWS = 6;
/** Names of the rows that a person opened: they stay open when another answer comes, so that one sees what a knob does to them. */
const opened = new Set();

/** The kind of rank that is shown: the one of the label, or the one that needs most. */
export function rankOf(answer, label) {
  const most = (rank) => rank.figures["peak.device"] ?? rank.figures["peak.allocated"] ?? 0;
  return answer.ranks.find((rank) => rank.label === label) ?? answer.ranks.reduce((worst, rank) => (most(rank) > most(worst) ? rank : worst));
}

/** The ledger of one kind of rank. `words` says how the server calls things; `pick(label)` shows another kind. */
export function ledger(job, answer, rank, words, pick) {
  const atPeak = rank.ledger.filter((entry) => entry.phases.includes(rank.peak_phase) && entry.bytes > 0);
  const rest = rank.ledger.filter((entry) => !entry.phases.includes(rank.peak_phase) && entry.bytes > 0);
  const peak = rank.figures["peak.allocated"];
  const table = (entries, caption) =>
    h(
      "table", { class: "ledger" }, h("caption", { class: "sr" }, caption),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Where"), h("th", { scope: "col", class: "n" }, "Bytes"), h("th", { scope: "col", class: "n" }, "% of peak"))),
      byCategory(entries).map((group) => body(job, group, rank, peak, words)),
    );
  return h(
    "section", { class: "panel", "aria-labelledby": "ledger-title" },
    h("h2", { id: "ledger-title" }, "Ledger"),
    h("p", { class: "hint" }, `Allocated at the peak: ${size(peak, 2)}, in ${spoken(rank.peak_phase)}. Open a row for its formula and source.`),
    answer.ranks.length > 1 ? rankPicker(answer, rank, pick) : null,
    table(atPeak, `Rows at the peak in ${spoken(rank.peak_phase)}`),
    rest.length ? h("details", { class: "fold" }, h("summary", {}, `${rest.length} rows that are not in memory at the peak`), table(rest, "Rows not in memory at the peak")) : null,
  );
}

function rankPicker(answer, rank, pick) {
  const id = "kind-of-rank"; // always the same, so that the focus finds it again
  const select = h("select", { id, onchange: () => pick(select.value) }, answer.ranks.map(({ label, gpus }) => h("option", { value: label }, `${label} (${number(gpus)} GPUs)`)));
  select.value = rank.label;
  return h("div", { class: "field inline" }, h("label", { for: id }, "Rank type"), select);
}

function byCategory(entries) {
  const groups = new Map();
  for (const entry of entries) {
    const group = groups.get(entry.category) ?? { category: entry.category, bytes: 0, entries: [] };
    group.bytes += entry.bytes;
    group.entries.push(entry);
    groups.set(entry.category, group);
  }
  const found = [...groups.values()].sort((a, b) => (a.category === OUTSIDE) - (b.category === OUTSIDE) || b.bytes - a.bytes);
  for (const group of found) group.entries.sort((a, b) => b.bytes - a.bytes);
  return found;
}

function body(job, { category, bytes, entries }, rank, peak, words) {
  const share = (amount) => (category === OUTSIDE ? "–" : percent(amount, peak));
  const about = words.categories[category];
  const shown = entries.length > MOST_ROWS + 1 ? entries.slice(0, MOST_ROWS) : entries;
  const rows = (some) => some.flatMap((entry) => row(job, entry, rank, share(entry.bytes), words));
  const rest = entries.slice(shown.length);
  const more = h("button", { type: "button", class: "link", onclick: () => place.replaceWith(...rows(rest)) }, `${rest.length} more rows`);
  const place = h("tr", {}, h("td", {}, more), h("td", { class: "n" }, size(rest.reduce((sum, entry) => sum + entry.bytes, 0), 2)), h("td"));
  return h(
    "tbody", {},
    h(
      "tr", { class: "group" },
      h("th", { scope: "rowgroup" }, h("span", { class: "swatch", style: `--swatch-light: ${about.light}; --swatch-dark: ${about.dark}` }), about.label),
      h("td", { class: "n" }, size(bytes, 2)), h("td", { class: "n" }, share(bytes)),
    ),
    rows(shown), rest.length ? place : null,
  );
}

function percent(part, whole) {
  if (!whole) return "";
  const share = (100 * part) / whole;
  return share < 0.5 ? "<1 %" : `${number(share, 0)} %`;
}

function row(job, entry, rank, share, words) {
  const name = nameOf(entry);
  const detail = h("tr", { id: uniqueId("formula"), class: "detail", hidden: true }, h("td", { colspan: 3 }));
  const button = h(
    "button", { id: name, type: "button", class: "row", "aria-expanded": "false", "aria-controls": detail.id, onclick: () => turn(detail.hidden) },
    breakable(entry.id),
  );
  const turn = async (open) => {
    detail.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) opened.add(name);
    else opened.delete(name);
    if (!open || detail.firstChild.hasChildNodes()) return;
    fill(detail.firstChild, explanation(entry, entry, words)); // what the answer says, until the server has set it
    fill(detail.firstChild, explanation(entry, await explained(job, entry, rank), words));
  };
  if (opened.has(name)) turn(true);
  return [h("tr", {}, h("td", {}, button), h("td", { class: "n" }, size(entry.bytes, 2)), h("td", { class: "n" }, share)), detail];
}

/** Names one row: an id may stand for several places that live in other phases. */
function nameOf({ id, category, phases }) {
  return [id, category, ...phases].join("@");
}

/** An id that may break after each of its parts. */
function breakable(id) {
  return id.split(/(?<=[/.])/).flatMap((part) => [new Text(part), h("wbr")]); // a text node stays as it is in every language
}

/** The row with its formulas in TeX, as the server sets them; without the server the row as it is, whose formulas stay plain text. */
async function explained(job, entry, rank) {
  try {
    const { rows } = await post("/api/explain", { job, entry: entry.id, rank: rank.label });
    return rows.find((row) => nameOf(row) === nameOf(entry)) ?? entry;
  } catch {
    return entry;
  }
}

/** The formula of a row as a formula, its letters, and where it comes from. `set` is the row with its formulas in TeX. */
function explanation(entry, set, words) {
  const letters = Object.entries(entry.symbols);
  const range = entry.low !== null && entry.high !== null ? ["range", `${size(entry.low, 2)} to ${size(entry.high, 2)}`] : null;
  const facts = [["bytes", `${number(entry.bytes)} = ${gib(entry.bytes, 3)} GiB`], range, ["alive in", entry.phases.map(spoken).join(", ")], ["basis", words.bases[entry.basis] ?? entry.basis], ["source", entry.source]];
  return h(
    "div", { class: "explanation" },
    formula(set.tex, entry.formula), set.numbers && set.numbers !== entry.formula ? formula(set.tex_numbers && `= ${set.tex_numbers}`, `= ${set.numbers}`) : null,
    letters.length ? h("p", { class: "letters" }, letters.map(([letter, value]) => h("span", {}, h("i", {}, letter), ` = ${number(value)}`))) : null,
    h("dl", {}, facts.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  );
}

function formula(tex, text) {
  const place = h("div", { class: "formula" });
  if (tex && globalThis.katex) globalThis.katex.render(tex, place, { throwOnError: false, displayMode: true, trust: false, maxExpand: 100, output: "htmlAndMathml" });
  else place.textContent = text;
  return place;
}
