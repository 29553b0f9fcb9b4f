// An answer as it streams in: text, reasoning, tool calls and log-probabilities, and how fast they came.

import { count, duration } from "../ui/numbers.js";

/** A message of the assistant, empty so far. It is kept as incomplete until its end has come. */
export function emptyAnswer() {
  return { role: "assistant", content: "", reasoning: "", toolCalls: [], tokens: [], stats: null, isIncomplete: true };
}

/** Adds chunks to a message and takes the time.
 * @param now milliseconds at any moment */
export class AnswerReader {
  #message;
  #now;
  #began;
  #first = null;
  #last = null;
  #usage = null;
  #finish = "";

  constructor(message, now = () => performance.now()) {
    this.#message = message;
    this.#now = now;
    this.#began = now();
  }

  add(chunk) {
    if (chunk.usage) this.#usage = chunk.usage;
    const [choice] = chunk.choices ?? [];
    if (!choice) return;
    const { delta = {}, logprobs, finish_reason: finish } = choice;
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    if (delta.content || reasoning || delta.tool_calls) {
      this.#last = this.#now();
      this.#first ??= this.#last;
    }
    this.#message.content += delta.content ?? "";
    this.#message.reasoning += reasoning;
    for (const piece of delta.tool_calls ?? []) this.#addToCall(piece);
    if (logprobs?.content) this.#message.tokens.push(...logprobs.content);
    if (finish) this.#finish = finish;
  }

  #addToCall({ index, id, function: piece = {} }) {
    const call = (this.#message.toolCalls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name += piece.name ?? "";
    call.arguments += piece.arguments ?? "";
  }

  /** Ends the message.
   * @param finish why, where the server did not say */
  end(finish = "") {
    delete this.#message.isIncomplete;
    const usage = this.#usage;
    this.#message.stats = {
      firstMs: this.#first === null ? null : this.#first - this.#began,
      totalMs: this.#now() - this.#began,
      tokensPerSecond: usage ? pace(usage.completion_tokens, this.#last - this.#first, this.#last - this.#began) : null,
      promptTokens: usage?.prompt_tokens ?? null,
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
      completionTokens: usage?.completion_tokens ?? null,
      finish: this.#finish || finish,
    };
  }
}

/** Tokens per second after the first one; of the whole answer where that took no time to speak of. */
function pace(tokens, generatingMs, totalMs) {
  if (!tokens) return null;
  if (tokens > 1 && generatingMs >= 5) return ((tokens - 1) * 1000) / generatingMs;
  return totalMs > 0 ? (tokens * 1000) / totalMs : null;
}

const FINISH = {
  length: "cut off at the token limit",
  tool_calls: "calls tools",
  content_filter: "stopped by a filter",
  stopped: "stopped by you",
  broken: "incomplete",
};

/** The line below an answer, in parts. */
export function statsInWords(stats) {
  if (!stats) return [];
  const prompt = stats.promptTokens === null ? "" : `${count(stats.promptTokens)} prompt tokens`;
  const cached = stats.cachedTokens ? ` (${count(stats.cachedTokens)} cached)` : "";
  return [
    stats.firstMs === null ? "" : `${duration(stats.firstMs)} to first token`,
    stats.tokensPerSecond === null ? "" : `${count(stats.tokensPerSecond)} tokens/s`,
    stats.completionTokens === null ? "" : `${count(stats.completionTokens)} tokens`,
    prompt + (prompt && cached),
    FINISH[stats.finish] ?? "",
  ].filter(Boolean);
}
