// Runs before the page is painted, so that a chosen theme does not flash. Not a module for that reason.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // storage is blocked: the system's theme it is
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
