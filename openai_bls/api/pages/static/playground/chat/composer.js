// Composer: the field for a message, its buttons, and what one may ask first.

import { byId, element } from "../ui/dom.js";
import { ofThisTab } from "../ui/storage.js";

/** Questions that any model of words can answer, and those for a model that reads pictures, of one that is chosen first. */
const SUGGESTIONS = ["What is machine learning?", "What is a KV cache?", "Write a haiku."];
const OF_A_PICTURE = ["What is in the picture?", "What color is it?", "Describe the picture."];

export class Composer {
  #chat;
  #library;
  #attachments;
  #field = byId("prompt");

  /** @param library begins new conversations
   * @param attachments pictures of the next message */
  constructor(chat, library, attachments) {
    [this.#chat, this.#library, this.#attachments] = [chat, library, attachments];
    // A message half written outlives a reload.
    this.#field.value = ofThisTab.get("draft") ?? "";
    this.#fit();
    this.#field.addEventListener("input", () => {
      ofThisTab.set("draft", this.text);
      this.#fit();
    });
    this.#field.addEventListener("keydown", (event) => this.#pressed(event));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.text);
    });
    byId("stop").addEventListener("click", () => {
      chat.stop();
      this.focus();
    });
    for (const id of ["new-chat", "list-new-chat"]) byId(id).addEventListener("click", () => this.begin());
    byId("code-button").addEventListener("click", () => chat.showCode(this.text, attachments.pictures));
    this.suggest(false);
  }

  /** Offers questions that the chosen model can answer.
   * @param takesPictures whether it reads pictures */
  suggest(takesPictures) {
    const ask = (text) => (takesPictures ? this.#askOfPicture(text) : this.send(text));
    const buttons = (takesPictures ? OF_A_PICTURE : SUGGESTIONS).map((text) => element("button", { type: "button", className: "suggestion", textContent: text, onclick: () => ask(text) }));
    byId("suggestions").replaceChildren(...buttons.map((button) => element("li", {}, button)));
  }

  async #askOfPicture(text) {
    if (!this.#attachments.pictures.length) await this.#attachments.choose();
    if (this.#attachments.pictures.length) this.send(text);
  }

  get text() {
    return this.#field.value;
  }

  /** Puts words in behind the cursor; what is selected stays, since there would be no way back to it. */
  insert(words) {
    const at = this.#field.selectionEnd;
    const before = /\S$/.test(this.text.slice(0, at)) ? " " : "";
    const after = /^[\p{L}\p{N}]/u.test(this.text.slice(at)) ? " " : "";
    this.#field.setRangeText(before + words + after, at, at, "end");
    this.#field.dispatchEvent(new Event("input"));
    this.focus();
  }

  send(text) {
    const { pictures } = this.#attachments;
    if ((!text.trim() && !pictures.length) || this.#chat.running || !this.#chat.send(text, pictures)) return;
    this.#attachments.clear();
    this.#field.value = "";
    ofThisTab.set("draft", "");
    this.#fit();
    this.focus();
  }

  /** Begins a new chat; the one that is shown stays in the list. */
  begin() {
    this.#library.begin();
    this.focus();
  }

  focus() {
    // On a touch screen the keyboard would cover the answer.
    if (!matchMedia("(pointer: coarse)").matches) this.#field.focus();
  }

  #pressed(event) {
    // Enter ends the composition of a Chinese or Japanese word before it sends anything.
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "ArrowUp" && !this.text && this.#chat.editLast()) event.preventDefault();
    if (event.key !== "Enter" || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.send(this.text);
  }

  #fit() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${Math.min(this.#field.scrollHeight, innerHeight * 0.35)}px`;
  }
}
