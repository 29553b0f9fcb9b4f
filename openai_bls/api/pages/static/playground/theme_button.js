// Button of the theme: as the system, light, dark, and round again. `pageTheme` comes from theme.js.

import { byId } from "./dom.js";

const NAMES = { system: "as the system has it", light: "light", dark: "dark" };

export class ThemeButton {
  #button = byId("theme-button");

  constructor() {
    this.#show();
    this.#button.addEventListener("click", () => {
      const { themes } = pageTheme;
      pageTheme.set(themes[(themes.indexOf(pageTheme.get()) + 1) % themes.length]);
      this.#show();
    });
  }

  #show() {
    const theme = document.documentElement.dataset.theme;
    this.#button.querySelector("use").setAttribute("href", `#symbol-theme-${theme}`);
    this.#button.title = `Theme: ${NAMES[theme]}`;
    this.#button.setAttribute("aria-label", this.#button.title);
  }
}
