// Keyboard shortcuts, and the dialog that lists them.

import { byId, element } from "./dom.js";

/** Keys that work in the composer and in fields, for the list alone. */
const IN_FIELDS = [
  ["Enter", "Send the message"],
  ["Shift Enter", "Begin a new line"],
  ["↑", "Edit the last message, in an empty field"],
];

export class Shortcuts {
  #keys;

  /** @param keys array of { key, code, alt, label, does }: `code` goes before `key`, for Alt changes keys on a Mac;
   * without `does` it is for the list alone */
  constructor(keys) {
    this.#keys = keys;
    const listed = [...IN_FIELDS, ...keys.map(({ name, label }) => [name, label])];
    byId("shortcuts-list").append(
      ...listed.flatMap(([name, label]) => [
        element("dt", {}, ...name.split(" ").map((key) => element("kbd", { textContent: key }))),
        element("dd", { textContent: label }),
      ]),
    );
    byId("shortcuts-button").addEventListener("click", () => this.open());
    byId("shortcuts-close").addEventListener("click", () => byId("shortcuts").close());
    document.addEventListener("keydown", (event) => this.#pressed(event));
  }

  open() {
    byId("shortcuts").showModal();
  }

  #pressed(event) {
    // An open dialog has the keyboard to itself, and Escape closes it.
    if (event.isComposing || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    const writes = event.target.matches?.("input, textarea, select");
    const found = this.#keys.find(({ key, code, does, alt = false, evenWriting = alt }) => {
      const pressed = code ? event.code === code : event.key === key;
      return does && pressed && event.altKey === alt && (evenWriting || !writes);
    });
    if (found && found.does() !== false) event.preventDefault();
  }
}
