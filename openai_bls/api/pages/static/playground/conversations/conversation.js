// One conversation: its messages in order, kept in the browser as they come.

import { newId } from "./store.js";

/** Between two times that an answer is kept while it streams in; more where keeping it takes long. */
const INTERVAL_MS = 250;
const PAUSE = 10;

/** True for the beginning of an answer of which nothing has come before the page was left. */
const isNothing = ({ isIncomplete, content, reasoning, toolCalls }) => isIncomplete === true && !content && !reasoning && !toolCalls?.length;
const readable = (messages) => messages.filter((message) => !isNothing(message));

export class Conversation {
  id;
  messages;
  #revision;
  #store;
  #saving = null;
  #again = false;
  #timer = 0;
  #tookMs = 0;
  #model;
  #onKept;

  /** @param options `store`; `loaded`: what it gave, null for a new one; `model()`; `onKept(conversation, error)` */
  constructor({ store, loaded = null, model, onKept }) {
    [this.#store, this.#model, this.#onKept] = [store, model, onKept];
    this.id = loaded?.id ?? newId();
    this.#revision = loaded?.revision ?? 0;
    this.messages = readable(loaded?.messages ?? []);
  }

  get isNew() {
    return this.#revision === 0;
  }

  /** True if its last question has no answer, or one without its end. */
  get lacksAnswer() {
    const last = this.messages.at(-1);
    return last?.role === "user" || last?.isIncomplete === true;
  }

  add(message) {
    this.messages.push(message);
    this.keep();
  }

  /** Drops `message` and all that follow. */
  cutAt(message) {
    const index = this.messages.indexOf(message);
    if (index >= 0) this.messages.length = index;
    this.keep();
  }

  /** The messages before `message`. */
  before(message) {
    return this.messages.slice(0, this.messages.indexOf(message));
  }

  /** Keeps the messages as they are; an empty conversation is none. */
  keep() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (!this.messages.length) return;
    if (this.#saving) this.#again = true;
    else this.#saving = this.#save();
  }

  /** Keeps them before long: for an answer that streams in. */
  keepSoon() {
    this.#timer ||= setTimeout(() => this.keep(), Math.max(INTERVAL_MS, PAUSE * this.#tookMs));
  }

  /** Resolves when all is kept. */
  async kept() {
    if (this.#timer) this.keep();
    await this.#saving;
  }

  async #save() {
    let fault = null;
    const began = performance.now();
    try {
      do {
        this.#again = false;
        const { id, messages } = this;
        Object.assign(this, this.#at(await this.#store.save({ id, messages, revision: this.#revision, model: this.#model() })));
      } while (this.#again);
    } catch (error) {
      fault = error;
    }
    this.#saving = null;
    this.#tookMs = performance.now() - began;
    this.#onKept(this, fault);
  }

  #at({ id, revision }) {
    this.#revision = revision;
    return { id };
  }

  /** Takes what another tab has kept; false if this tab has more to keep.
   * @param loaded what the store gave */
  follow(loaded) {
    if (this.#saving || this.#timer || loaded.revision <= this.#revision) return false;
    [this.#revision, this.messages] = [loaded.revision, readable(loaded.messages)];
    return true;
  }
}
