// Text as base64 and back, by way of UTF-8.

export function toBase64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
}

/** Raises an error for what is no base64 of UTF-8 text. */
export function fromBase64(text) {
  return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
}
