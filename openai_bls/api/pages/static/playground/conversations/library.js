// Conversations that this tab has open: the one that is shown, and those into which an answer still streams.
// The address names the one that is shown, so that a reload, another tab and the way back find it.

import { keptJson, kept } from "../ui/storage.js";
import { Conversation } from "./conversation.js";
import { ConversationStore } from "./store.js";
import { readMessages } from "./transfer.js";

const ADDRESS = /^#chat=([0-9a-f]+)$/;

export class Library {
  store = new ConversationStore();
  current;
  #running = new Map();
  #model;
  #onShown;
  #onChange;
  #onFault;

  /** @param options `model()`; `onShown(isRead)`: another conversation is shown, perhaps one that was read
   * from the browser, or another tab has changed it; `onChange()`:
   * an answer began or ended; `onFault(conversation, error)`: the browser does not keep a conversation */
  constructor({ model, onShown, onChange, onFault }) {
    [this.#model, this.#onShown, this.#onChange, this.#onFault] = [model, onShown, onChange, onFault];
    this.current = this.#make(null);
    this.store.addEventListener("change", ({ detail }) => detail.isElsewhere && detail.ids.includes(this.current.id) && this.#follow());
    addEventListener("hashchange", () => this.openAddressed());
  }

  #make(loaded) {
    return new Conversation({ store: this.store, loaded, model: this.#model, onKept: (conversation, error) => this.#kept(conversation, error) });
  }

  /** What follows the page's path in the address of the conversation that is shown. */
  get address() {
    return this.current.isNew ? location.pathname + location.search : `#chat=${this.current.id}`;
  }

  /** Shows the conversation that the address names; a new one if it names none. */
  async openAddressed() {
    if (location.hash === "#live") return;
    const id = ADDRESS.exec(location.hash)?.[1] ?? "";
    if (id === this.current.id || (!id && this.current.isNew)) return;
    const held = [...this.#running.keys()].find((conversation) => conversation.id === id);
    const loaded = held || !id ? null : await this.store.load(id);
    if (id && !held && !loaded) history.replaceState(null, "", location.pathname + location.search);
    this.#turnTo(held ?? this.#make(loaded), Boolean(loaded));
  }

  /** Begins a new conversation; the one that was shown stays in the list. */
  begin() {
    if (!this.current.messages.length) return;
    if (location.hash !== "#live") history.pushState(null, "", location.pathname + location.search);
    this.#turnTo(this.#make(null));
  }

  #turnTo(conversation, isRead = false) {
    this.current = conversation;
    this.#onShown(isRead);
    this.#onChange();
  }

  /** Remembers a conversation while an answer streams into it.
   * @param run { abort, ended } */
  addRun(conversation, run) {
    this.#running.set(conversation, run);
    this.#onChange();
    run.ended.finally(() => {
      this.#running.delete(conversation);
      this.#onChange();
    });
  }

  /** The answer that streams into a conversation; undefined if there is none. */
  runOf(conversation) {
    return this.#running.get(conversation);
  }

  runs(id) {
    return [...this.#running.keys()].some((conversation) => conversation.id === id);
  }

  /** Keeps what has come of all answers. */
  keepAll() {
    for (const conversation of this.#running.keys()) conversation.keep();
  }

  #kept(conversation, error) {
    if (error) return this.#onFault(conversation, error);
    if (conversation === this.current && location.hash !== "#live" && location.hash !== `#chat=${conversation.id}`) history.replaceState(null, "", `#chat=${conversation.id}`);
    this.#onChange();
  }

  /** Another tab has kept more of what is shown. */
  async #follow() {
    const conversation = this.current;
    if (this.runOf(conversation)) return;
    const loaded = await this.store.load(conversation.id);
    if (loaded && conversation === this.current && !this.runOf(conversation) && conversation.follow(loaded)) this.#onShown();
  }

  /** Takes over the chat that releases before this one kept. */
  async takeOver() {
    const messages = readMessages(keptJson("chat", []));
    if (messages.length) await this.store.add({ messages });
    kept.set("chat", "");
  }
}
