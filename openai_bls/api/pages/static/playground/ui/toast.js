// A line at the bottom of the page that says what was done, with a button to undo it, for a while.

import { byId, element } from "./dom.js";

const SHOWN_MS = 10_000;

export class Toast {
  #box = byId("toast");
  #timer = 0;

  constructor() {
    // It stays as long as the visitor is at it.
    for (const event of ["pointerenter", "focusin"]) this.#box.addEventListener(event, () => clearTimeout(this.#timer));
    for (const event of ["pointerleave", "focusout"]) this.#box.addEventListener(event, () => this.#wait());
  }

  /** @param undo takes the button's press; none without it */
  show(text, undo = null) {
    const button = undo && element("button", { type: "button", className: "button small", textContent: "Undo", onclick: () => this.#press(undo) });
    this.#box.replaceChildren(element("span", { textContent: text }), ...(button ? [button] : []));
    this.#box.hidden = false;
    this.#wait();
  }

  hide() {
    clearTimeout(this.#timer);
    this.#box.hidden = true;
  }

  #press(undo) {
    this.hide();
    undo();
  }

  #wait() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.hide(), SHOWN_MS);
  }
}
