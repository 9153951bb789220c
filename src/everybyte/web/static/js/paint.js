// Light or dark: what the system says, or what the person chose. js/theme.js applies a kept choice before the page is painted.

import { h } from "./dom.js";

const CHOICES = { auto: ["◐", "Theme: as the system"], light: ["☀", "Theme: light"], dark: ["☾", "Theme: dark"] };
const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** The theme that is painted now. */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** A button that goes from one choice to the next and calls `repaint`. */
export function themeButton(repaint) {
  const button = h("button", { type: "button", class: "icon", onclick: () => turn() });
  const label = (choice) => {
    const [sign, words] = CHOICES[choice];
    button.textContent = sign;
    button.title = words;
    button.setAttribute("aria-label", words);
  };
  const turn = () => {
    const choice = NEXT[document.documentElement.dataset.theme ?? "auto"];
    if (choice === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    keep(choice);
    label(choice);
    repaint();
  };
  label(document.documentElement.dataset.theme ?? "auto");
  return button;
}

function keep(choice) {
  try {
    localStorage.setItem("theme", choice);
  } catch {
    // storage is blocked: the choice holds until the page is left
  }
}
