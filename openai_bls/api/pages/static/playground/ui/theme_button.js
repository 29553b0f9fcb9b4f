// Buttons of the theme: as the system, light, dark, and round again. `pageTheme` comes from theme.js.

const NAMES = { system: "as the system has it", light: "light", dark: "dark" };

export class ThemeButton {
  /** In the bar, and on a phone in the settings. */
  #buttons = [...document.querySelectorAll(".theme-button")];

  constructor() {
    this.#show();
    const next = () => {
      const { themes } = pageTheme;
      pageTheme.set(themes[(themes.indexOf(pageTheme.get()) + 1) % themes.length]);
      this.#show();
    };
    for (const button of this.#buttons) button.addEventListener("click", next);
  }

  #show() {
    const theme = document.documentElement.dataset.theme;
    for (const button of this.#buttons) {
      button.querySelector("use").setAttribute("href", `#symbol-theme-${theme}`);
      button.title = `Theme: ${NAMES[theme]}`;
      button.setAttribute("aria-label", button.title);
    }
  }
}
