// Conversation: its messages in order, kept in the browser over a reload.

import { kept, keptJson } from "./storage.js";

/** Left out of what is kept: large, and of use to the last answers alone. */
const PASSING = new Set(["tokens", "request"]);

/** Numbers of an answer's stats; null where they are not known. */
const STATS = ["firstMs", "tokensPerSecond", "promptTokens", "cachedTokens", "completionTokens"];

const isText = (value) => typeof value === "string";
const isTextOrNone = (value) => value === undefined || value === null || isText(value);

/** True for a message that can be shown: another release may have kept it, or a hand changed it. */
function isMessage(message) {
  const { role, content, reasoning, toolCalls = [] } = message ?? {};
  return (
    (role === "user" || role === "assistant") &&
    isText(content) &&
    isTextOrNone(reasoning) &&
    Array.isArray(toolCalls) &&
    toolCalls.every((call) => isText(call?.name) && isText(call.arguments) && isTextOrNone(call.result))
  );
}

const hasStats = ({ stats }) => Boolean(stats) && STATS.every((name) => stats[name] === null || typeof stats[name] === "number");

/** The messages that were kept, without what is malformed. */
function keptMessages() {
  const found = keptJson("chat", []);
  if (!Array.isArray(found)) return [];
  return found.filter(isMessage).map((message) => (hasStats(message) ? message : { ...message, stats: null }));
}

export class Conversation {
  messages = keptMessages();

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
