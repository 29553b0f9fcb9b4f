// Chat: questions go out, answers stream in, one at a time.

import { AnswerReader, emptyAnswer } from "./answer.js";
import { chatChunks } from "./api.js";
import { byId, element } from "./dom.js";
import { MessageView } from "./message_view.js";
import { Problem } from "./problems.js";
import { requestBody } from "./request_body.js";

export class Chat {
  #conversation;
  #settings;
  #model;
  #views = new Map();
  #running = null;
  #actions;
  #onField;

  /** @param options `conversation`, `settings`, `model()`, `openCode(body)`, `onField(name)` goes to the field that
   * a problem is about */
  constructor({ conversation, settings, model, openCode, onField }) {
    this.#conversation = conversation;
    this.#settings = settings;
    this.#model = model;
    this.#onField = onField;
    this.#actions = {
      again: (message) => this.regenerate(message),
      edit: (message, text) => this.#edit(message, text),
      code: (message) => this.#withProblems(() => openCode(message.request ?? this.body(conversation.before(message)))),
      results: (message, results) => this.#sendResults(message, results),
      isLast: (message) => conversation.messages.at(-1) === message,
    };
    this.#showAll();
  }

  get running() {
    return this.#running !== null;
  }

  /** The request that answers `messages`.
   * @throws Problem a setting that cannot be sent */
  body(messages) {
    return requestBody(this.#model(), this.#settings.values(), messages);
  }

  /** Sends a message; false if it cannot be sent as the settings are. */
  send(text) {
    const question = { role: "user", content: text };
    const body = this.#withProblems(() => this.body([...this.#conversation.messages, question]));
    if (!body) return false;
    this.#conversation.add(question);
    this.#generate(body);
    return true;
  }

  /** Ends the answer that streams in, and keeps what there is of it. */
  stop() {
    this.#running?.abort();
  }

  /** Answers once more: what `message` answered, else the last question. */
  async regenerate(message = this.#conversation.messages.at(-1)) {
    await this.#stopped();
    if (message?.role === "assistant") this.#conversation.cutAt(message);
    this.#answerConversation();
  }

  /** Sends the conversation as it stands once more, after a problem. */
  async retry() {
    await this.#stopped();
    const last = this.#conversation.messages.at(-1);
    if (last?.role === "assistant" && last.stats?.finish === "broken") this.#conversation.cutAt(last);
    this.#answerConversation();
  }

  async clear() {
    await this.#stopped();
    this.#conversation.clear();
    this.showProblem(null);
    this.#showAll();
  }

  /** Shows the request that would answer the conversation with `text`. */
  showCode(text) {
    const { messages } = this.#conversation;
    const question = text.trim() || !messages.length ? [{ role: "user", content: text }] : [];
    this.#withProblems(() => this.#actions.code({ request: this.body([...messages, ...question]) }));
  }

  /** Opens the last question for editing; false if there is none. */
  editLast() {
    const question = this.#conversation.messages.findLast(({ role }) => role === "user");
    this.#views.get(question)?.edit();
    return Boolean(question);
  }

  /** Shows a problem with the list of models; null is that it has come. */
  showListProblem(problem) {
    if (problem) this.showProblem(problem);
    // It may be the same problem that the list had.
    else if (!this.running && ["0", "401", "503"].includes(byId("problem").dataset.status)) this.showProblem(null);
  }

  /** Shows a problem below the messages; null removes it. */
  showProblem(problem) {
    const box = byId("problem");
    box.hidden = !problem;
    if (!problem) return box.replaceChildren();
    const parts = [element("p", {}, element("strong", { textContent: problem.title }), " ", problem.advice)];
    if (problem.detail) parts.push(element("p", { className: "note", textContent: problem.detail }));
    const button = (text, onclick) => element("button", { type: "button", className: "button small", textContent: text, onclick });
    if (problem.field) parts.push(button("Show me where", () => this.#onField(problem.field)));
    if (problem.canRetry) parts.push(button("Try again", () => this.retry()));
    box.replaceChildren(...parts);
    box.dataset.status = problem.status;
    this.#scroll(true);
  }

  #withProblems(work) {
    try {
      return work();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.showProblem(error);
      return null;
    }
  }

  async #stopped() {
    this.stop();
    await this.#running?.ended;
  }

  #answerConversation() {
    const { messages } = this.#conversation;
    if (!messages.length) return;
    const body = this.#withProblems(() => this.body(messages));
    if (body) this.#generate(body);
    else this.#showAll();
  }

  async #edit(message, text) {
    await this.#stopped();
    if (message.role === "user") {
      this.#conversation.cutAt(message);
      this.#showAll();
      if (text.trim()) this.send(text);
      return;
    }
    Object.assign(message, { content: text, tokens: [] });
    this.#conversation.keep();
    this.#views.get(message)?.finish();
  }

  #sendResults(message, results) {
    message.toolCalls.forEach((call, index) => (call.result = results[index]));
    this.#conversation.keep();
    this.#answerConversation();
  }

  #generate(body) {
    const controller = new AbortController();
    const ended = this.#stream(body, controller.signal);
    this.#running = { abort: () => controller.abort(), ended };
    this.#showRunning();
    ended.finally(() => {
      this.#running = null;
      this.#showRunning();
    });
  }

  async #stream(body, signal) {
    this.showProblem(null);
    const message = { ...emptyAnswer(), request: body, json: Boolean(body.response_format) };
    this.#conversation.messages.push(message);
    this.#showAll();
    const view = this.#views.get(message);
    const reader = new AnswerReader(message);
    view.update();
    this.#say("Answering");
    let problem = null;
    let cause = "";
    try {
      for await (const chunk of chatChunks(body, this.#settings.key, signal)) {
        reader.add(chunk);
        view.update();
        this.#scroll();
      }
    } catch (error) {
      if (error.name === "AbortError") cause = "stopped";
      else if (error instanceof Problem) [problem, cause] = [error, "broken"];
      else throw error;
    } finally {
      reader.end(cause);
      this.#close(message, view, body);
    }
    if (problem) this.showProblem(problem);
    this.#say(problem ? "" : `Answer: ${message.content || "a tool call"}`);
  }

  #close(message, view, body) {
    if (message.content || message.reasoning || message.toolCalls.length || ["stop", "stopped"].includes(message.stats.finish)) {
      view.finish();
      if (body.logprobs) view.showTokens(true);
    } else {
      this.#conversation.cutAt(message);
      this.#showAll();
    }
    this.#conversation.keep();
    this.#scroll();
  }

  /** Brings the views in line with the conversation. */
  #showAll() {
    const { messages } = this.#conversation;
    for (const [message, view] of this.#views) {
      if (messages.includes(message)) continue;
      view.node.remove();
      this.#views.delete(message);
    }
    for (const message of messages) {
      if (this.#views.has(message)) continue;
      // A call of the message before may no longer wait for its result.
      this.#views.get(messages.at(messages.indexOf(message) - 1))?.finish();
      const view = new MessageView(message, this.#actions);
      this.#views.set(message, view);
      byId("messages").append(view.node);
    }
    byId("welcome").hidden = messages.length > 0;
    this.#scroll(true);
  }

  #showRunning() {
    byId("stop").hidden = !this.running;
    byId("send").hidden = this.running;
  }

  #say(text) {
    byId("status").textContent = text.slice(0, 2000);
  }

  /** Keeps the end in view, unless the visitor has scrolled away from it. */
  #scroll(always = false) {
    const box = byId("scroll");
    if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 160) requestAnimationFrame(() => (box.scrollTop = box.scrollHeight));
  }
}
