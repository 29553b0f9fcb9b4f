// Panel at a side of the page: beside the chat where there is room, else over it, opened by a button.

import { byId } from "./dom.js";

export class SidePanel {
  #panel;
  #button;
  #close;

  /** @param name id of the panel; its buttons are `<name>-button` and `<name>-close` */
  constructor(name) {
    [this.#panel, this.#button, this.#close] = [byId(name), byId(`${name}-button`), byId(`${name}-close`)];
    this.#button.addEventListener("click", () => this.show(!this.shown));
    this.#close.addEventListener("click", () => this.show(false));
    this.#panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.covers || event.defaultPrevented) return;
      event.preventDefault();
      event.stopPropagation();
      this.show(false);
    });
  }

  get shown() {
    return this.#panel.classList.contains("shown");
  }

  /** True if it lies over the chat, or would. */
  get covers() {
    return getComputedStyle(this.#close).display !== "none";
  }

  show(shown) {
    this.#panel.classList.toggle("shown", shown);
    this.#button.setAttribute("aria-expanded", String(shown));
    if (!this.covers) return;
    if (shown) this.#close.focus();
    else this.#button.focus();
  }

  /** Closes it where it covers the chat. */
  leave() {
    if (this.shown && this.covers) this.show(false);
  }

  /** Goes to the field of a name, wherever it is. */
  pointAt(name) {
    const field = byId(name);
    if (this.#panel.contains(field) && this.covers) this.show(true);
    const part = field.closest("details");
    if (part) part.open = true;
    field.focus();
  }
}
