// Conversation: its messages in order, kept in the browser over a reload.

import { kept, keptJson } from "./storage.js";

/** Left out of what is kept: large, and of use to the last answers alone. */
const PASSING = new Set(["tokens", "request"]);

export class Conversation {
  messages = keptJson("chat", []).filter((message) => message?.role === "user" || message?.role === "assistant");

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

  clear() {
    this.messages.length = 0;
    this.keep();
  }

  keep() {
    kept.set("chat", this.messages.length ? JSON.stringify(this.messages, (name, value) => (PASSING.has(name) ? undefined : value)) : "");
  }
}
