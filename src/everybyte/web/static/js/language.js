// The language of the page. Texts are written in English and looked up where an element is made of them: by themselves, or by the template that they were
// made from, such as "needs {0}, {1} left". The rules are those of report/language.py, and so is the catalogue.

import { ask } from "./api.js";

const NAMES = { en: "EN", zh: "中文" };
const JOINTS = [[" · ", " · "], ["; ", "；"], [". ", "。"], [": ", "："]];
const LIST = " · ";
const KEPT = 5000;

let messages = new Map();
let templates = new Map();
const known = new Map();

/** The code of the language in use: what the person chose, else what the browser asks for. */
export function language() {
  return document.documentElement.lang in NAMES ? document.documentElement.lang : "en";
}

/** Loads the catalogue of the language that is wanted; without one the page stays English. */
async function loadLanguage() {
  const wanted = chosen() ?? (navigator.language.startsWith("zh") ? "zh" : "en");
  if (wanted === "en") return;
  const found = await ask(`/api/messages?lang=${wanted}`);
  messages = new Map(Object.entries(found.messages));
  templates = indexed(found.messages);
  document.documentElement.lang = wanted;
}

/** The other languages, each with its name and a way to it. */
export function otherLanguages() {
  const others = Object.keys(NAMES).filter((code) => code !== language());
  return others.map((code) => ({ code, name: NAMES[code], choose: () => (keep(code), location.reload()) }));
}

/** A text in the language of the page; as it is where the catalogue does not have it. Spaces around it stay. */
export function said(text) {
  if (!messages.size) return text;
  const [, before, core, after] = /^((?:\s|[-–·]\s)*)([^]*?)(\s*)$/.exec(text);
  if (!core) return text;
  const found = spoken(core);
  return before + found + (/[：；。，、（]$/.test(found) ? "" : after);
}

function spoken(text) {
  if (!known.has(text)) {
    if (known.size > KEPT) known.clear();
    known.set(text, messages.get(text) ?? byTemplate(text) ?? inParts(text));
  }
  return known.get(text);
}

function byTemplate(text) {
  const candidates = new Set((text.match(/[A-Za-z]{3,}/g) ?? []).flatMap((word) => templates.get(word) ?? []).filter(({ isList }) => isList || !text.includes(LIST)));
  for (const { pattern, translation } of [...candidates].sort((a, b) => b.length - a.length)) {
    const match = pattern.exec(text);
    if (match) return translation.replace(/\{(\d+)\}/g, (_, hole) => inner(match[1 + Number(hole)] ?? "", text));
  }
  return null;
}

/** What was put into a text may be a text itself. */
function inner(value, whole) {
  const core = value.trim();
  return core && core.length < whole.length ? value.replace(core, () => spoken(core)) : value;
}

/** What is put together of several messages, part by part. */
function inParts(text) {
  for (const [joint, asSaid] of JOINTS) {
    const parts = text.split(joint);
    if (parts.length < 2) continue;
    const end = joint === ". " ? "." : ""; // a sentence stands in the catalogue with its full stop
    const found = parts.map((part, index) => (index < parts.length - 1 ? spoken(part + end).replace(/[.。]$/, "") : spoken(part)));
    if (found.some((part, index) => part !== parts[index])) return found.join(asSaid);
  }
  const remark = /^(.+) (\(.+\))$/s.exec(text);
  const found = remark && [spoken(remark[1]), spoken(remark[2])];
  return remark && found.join(" ") !== text ? found.join("") : text;
}

/** Templates by the longest word of each. Holes are numbered from 0 in the order of the English text. */
function indexed(found) {
  const out = new Map();
  for (const [message, translation] of Object.entries(found)) {
    if (!/\{\d+\}/.test(message)) continue;
    const literal = message.split(/\{\d+\}/);
    const words = literal.join(" ").match(/[A-Za-z]{3,}/g);
    if (!words) continue;
    const longest = words.reduce((best, word) => (word.length > best.length ? word : best));
    const pattern = new RegExp(`^${literal.map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("([^]*?)")}$`);
    out.set(longest, [...(out.get(longest) ?? []), { pattern, translation, length: literal.join("").length, isList: message.includes(LIST) }]);
  }
  return out;
}

function chosen() {
  try {
    return localStorage.getItem("lang");
  } catch {
    return null; // storage is blocked: the browser's language it is
  }
}

function keep(code) {
  try {
    localStorage.setItem("lang", code);
  } catch {
    // storage is blocked: the choice cannot be kept
  }
}

// Every module that makes elements waits here, so that none is made in the wrong language.
await loadLanguage().catch(() => {});
