// The tab Snapshot: where the bytes of a PyTorch memory snapshot are.

import { h } from "./dom.js";
import { grid } from "./grid.js";
import { intake } from "./intake.js";
import { gib, number, size, spoken } from "./words.js";

const MOST_ROWS = 15;
const WIDTH = 600;
const HEIGHT = 120;

export function make() {
  return intake({
    title: "Where are the bytes of a memory snapshot?", hint: "PyTorch writes it as a pickle, plain or gzip. It is read as plain data and not kept.",
    route: "/api/snapshot", show: ({ devices }) => (devices.length ? devices.map(device) : h("p", { class: "panel" }, "The snapshot holds no memory of any device.")),
  });
}

function device(one) {
  const { allocated, reserved, fragmentation, replayed } = one;
  const facts = [
    `Allocated: ${size(allocated.peak)} at the peak, ${size(allocated.now)} now.`, `Reserved: ${size(reserved.peak)} at the peak, ${size(reserved.now)} now.`,
    `Free inside reserved memory: ${size(fragmentation.free)} in ${number(fragmentation.blocks, 0)} blocks, the largest ${size(fragmentation.largest)}.`,
    replayed.expandable_segments === null || replayed.reserved === null ? "" : `With expandable segments the allocator would reserve ${size(replayed.expandable_segments)} instead of ${size(replayed.reserved)}.`,
    ...one.growth.map(({ line, first, last }) => `Grows from ${size(first)} to ${size(last)}: ${line}`),
  ];
  return h(
    "section", { class: "panel stack" }, h("h2", {}, `Device ${one.device}`), facts.filter(Boolean).map((fact) => h("p", {}, fact)), course(one.timeline),
    ["categories", "modules", "lines"].map((name) => held(name, one[name])),
  );
}

function held(name, rows) {
  const title = { categories: "By category", modules: "By module", lines: "By line of code" }[name];
  const columns = [[title, (row) => (name === "categories" ? spoken(row.name) : h("code", {}, row.name)), true], ["Peak, GiB", ({ peak }) => gib(peak)], ["Now, GiB", ({ now }) => gib(now)]];
  return rows.length ? grid(title, columns, rows.slice(0, MOST_ROWS)) : null;
}

/** Allocated bytes over the events, as an area. */
function course(values) {
  if (values.length < 2) return null;
  const most = Math.max(...values, 1);
  const points = values.map((value, index) => `${((WIDTH * index) / (values.length - 1)).toFixed(1)},${(HEIGHT * (1 - value / most)).toFixed(1)}`);
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const area = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
  area.setAttribute("points", `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  for (const [name, value] of [["viewBox", `0 0 ${WIDTH} ${HEIGHT}`], ["preserveAspectRatio", "none"], ["class", "course"], ["aria-hidden", "true"]]) picture.setAttribute(name, value);
  picture.append(area);
  return h("div", { role: "img", "aria-label": `Allocated memory over the events; the highest is ${size(most)}` }, picture);
}
