// Theme of the last visit, set before anything is painted; hence no module. "system" follows the browser.
"use strict";
const pageTheme = {
  themes: ["system", "light", "dark"],
  get() {
    try {
      const kept = localStorage.getItem("openai_bls.theme");
      return this.themes.includes(kept) ? kept : "system";
    } catch {
      return "system"; // storage is blocked
    }
  },
  set(theme) {
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("openai_bls.theme", theme);
    } catch {
      // It lasts until the page is left.
    }
  },
};
document.documentElement.dataset.theme = pageTheme.get();
globalThis.pageTheme = pageTheme;
