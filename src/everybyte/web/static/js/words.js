// How sizes, counts and names are written; the same rules as report/words.py.

const GIB = 2 ** 30;
const MIB = 2 ** 20;
const KIB = 2 ** 10;

/** `21.4`: bytes in GiB, without the unit. What would round to nothing is `<0.01`. */
export function gib(bytes, digits = 2) {
  const text = number(bytes / GIB, digits);
  return bytes > 0 && Number(text.replaceAll(",", "")) === 0 ? `<${(10 ** -digits).toFixed(digits)}` : text;
}

/** A figure that is no size, in the unit that the server names: count, time (seconds), rate (a second), share, or the unit's own name. */
export function inUnit(unit, n) {
  if (unit === "time") return n >= 1 ? `${number(n, 2)} s` : `${number(1000 * n, 0)} ms`;
  if (unit === "rate") return `${number(n, n >= 10 ? 0 : 1)}/s`;
  if (unit === "share") return `${number(100 * n, 0)} %`;
  return unit === "count" ? number(n) : `${number(n, 0)} ${unit}`;
}

/** `21.4 GiB`, `96 MiB`, `512 B`: bytes with the unit that suits them. */
export function size(bytes, digits = 1) {
  const amount = Math.abs(bytes);
  if (amount >= GIB / 10) return `${number(bytes / GIB, digits)} GiB`;
  if (amount >= MIB) return `${number(bytes / MIB, amount < 10 * MIB ? 1 : 0)} MiB`;
  if (amount >= KIB) return `${number(bytes / KIB, amount < 10 * KIB ? 1 : 0)} KiB`;
  return `${number(bytes, 0)} B`;
}

/** `8.03 B`: a number of parameters. */
export function count(n) {
  for (const [name, unit] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (n >= unit) return `${Number((n / unit).toPrecision(3))} ${name}`;
  }
  return String(n);
}

/** `194,176`, `5.93`: a number with commas. A half goes to the even digit, as Python rounds it: sizes in GiB often end in exactly one. */
export function number(n, digits = n % 1 ? 2 : 0) {
  return n.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven" });
}

/** `optimizer_state` -> `optimizer state`. */
export function spoken(name) {
  return name.replaceAll("_", " ");
}

/** A value of a setting in words. */
export function shown(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return number(value, undefined);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
