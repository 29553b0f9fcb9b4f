// Panel of the settings: beside the chat where there is room, else over it.

import { byId } from "./dom.js";

export class SettingsPanel {
  #panel = byId("settings");
  #button = byId("settings-button");

  constructor() {
    this.#button.addEventListener("click", () => this.show(!this.shown));
    byId("settings-close").addEventListener("click", () => this.show(false));
  }

  get shown() {
    return this.#panel.classList.contains("shown");
  }

  show(shown) {
    this.#panel.classList.toggle("shown", shown);
    this.#button.setAttribute("aria-expanded", String(shown));
    if (shown) byId("settings-close").focus();
    else this.#button.focus();
  }

  /** Goes to the field of a name, wherever it is. */
  pointAt(name) {
    const field = byId(name);
    if (this.#panel.contains(field) && getComputedStyle(byId("settings-close")).display !== "none") this.show(true);
    const part = field.closest("details");
    if (part) part.open = true;
    field.focus();
  }
}
