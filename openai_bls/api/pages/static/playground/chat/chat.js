// Chat: questions go out, answers stream in, one at a time in each conversation.

import { AnswerReader, emptyAnswer } from "./answer.js";
import { chatChunks } from "../api/api.js";
import { byId, element } from "../ui/dom.js";
import { ScrollEnd } from "./scroll_end.js";
import { MessageView } from "./message_view.js";
import { Problem, cutOff } from "../problems.js";
import { requestBody } from "../settings/request_body.js";

/** From so many messages on, those out of sight are not laid out, and are made when they come near. */
const MANY = 24;

export class Chat {
  #library;
  #settings;
  #model;
  #views = new Map();
  #coming = new Set();
  #end = new ScrollEnd(byId("scroll"), byId("messages"), () => this.running);
  #actions;
  #onField;
  #reading = null;

  /** @param options `library`, `settings`, `model()`, `openCode(body)`, `onField(name)` goes to the field that
   * a problem is about, `read(message)` reads an answer aloud or stops */
  constructor({ library, settings, model, openCode, onField, read }) {
    this.#library = library;
    this.#settings = settings;
    this.#model = model;
    this.#onField = onField;
    this.#actions = {
      again: (message) => this.regenerate(message),
      edit: (message, text) => this.#edit(message, text),
      code: (message) => this.#withProblems(() => openCode(message.request ?? this.body(this.#conversation.before(message)))),
      results: (message, results) => this.#sendResults(message, results),
      read,
      isRead: (message) => this.#reading === message,
      isComing: (message) => this.#coming.has(message),
      isLast: (message) => this.#conversation.messages.at(-1) === message,
    };
    this.#showAll();
  }

  get #conversation() {
    return this.#library.current;
  }

  get running() {
    return this.#library.runOf(this.#conversation) !== undefined;
  }

  /** Shows the conversation that the library has turned to.
   * @param isRead whether it was read from the browser, which may have ended with the page before its answer had */
  show(isRead = false) {
    const { messages, lacksAnswer } = this.#conversation;
    this.showProblem(isRead && lacksAnswer && !this.running ? cutOff(messages.at(-1).isIncomplete === true) : null);
    this.#showAll();
    this.showRunning();
  }

  /** The request that answers `messages`.
   * @throws Problem a setting that cannot be sent */
  body(messages) {
    return requestBody(this.#model(), this.#settings.values(), messages);
  }

  /** Sends a message; false if it cannot be sent as the settings are. */
  send(text, pictures = []) {
    const question = { role: "user", content: text, ...(pictures.length && { pictures }) };
    const body = this.#withProblems(() => this.body([...this.#conversation.messages, question]));
    if (!body) return false;
    this.#conversation.add(question);
    this.#generate(body);
    return true;
  }

  /** Ends the answer that streams in, and keeps what there is of it. */
  stop() {
    this.#library.runOf(this.#conversation)?.abort();
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
    if (last?.role === "assistant" && (last.isIncomplete || last.stats?.finish === "broken")) this.#conversation.cutAt(last);
    this.#answerConversation();
  }

  /** Shows the request that would answer the conversation with `text`. */
  showCode(text, pictures = []) {
    const { messages } = this.#conversation;
    const question = text.trim() || pictures.length || !messages.length ? [{ role: "user", content: text, pictures }] : [];
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
    this.#end.show();
  }

  /** Shows which answer is read aloud; null is none. */
  showReading(message) {
    const before = this.#reading;
    this.#reading = message;
    for (const one of [before, message]) this.#views.get(one)?.showRead();
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
    await this.#library.runOf(this.#conversation)?.ended;
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
      if (!text.trim() && !message.pictures?.length) return this.#views.get(message)?.finish();
      this.#conversation.cutAt(message);
      this.#showAll();
      this.send(text, message.pictures);
      return;
    }
    Object.assign(message, { content: text, tokens: [], isIncomplete: undefined });
    this.#conversation.keep();
    this.#views.get(message)?.finish();
  }

  #sendResults(message, results) {
    message.toolCalls.forEach((call, index) => (call.result = results[index]));
    this.#conversation.keep();
    this.#answerConversation();
  }

  #generate(body) {
    const conversation = this.#conversation;
    const controller = new AbortController();
    const ended = this.#stream(conversation, body, controller.signal);
    this.#library.addRun(conversation, { abort: () => controller.abort(), ended });
  }

  async #stream(conversation, body, signal) {
    this.showProblem(null);
    const message = { ...emptyAnswer(), request: body, json: Boolean(body.response_format) };
    this.#coming.add(message);
    conversation.messages.push(message);
    this.#showAll();
    const reader = new AnswerReader(message);
    // The visitor may turn to another conversation, and back.
    const isShown = () => conversation === this.#conversation;
    const update = () => isShown() && this.#views.get(message)?.update();
    update();
    this.#say("Answering");
    let problem = null;
    let cause = "";
    try {
      for await (const chunks of chatChunks(body, this.#settings.key, signal)) {
        for (const chunk of chunks) reader.add(chunk);
        update();
        conversation.keepSoon();
      }
    } catch (error) {
      if (error.name === "AbortError") cause = "stopped";
      else if (error instanceof Problem) [problem, cause] = [error, "broken"];
      else throw error;
    } finally {
      reader.end(cause);
      this.#coming.delete(message);
      this.#close(conversation, message, body);
    }
    if (!isShown()) return;
    if (problem) this.showProblem(problem);
    this.#say(problem ? "" : `Answer: ${message.content || "a tool call"}`);
  }

  #close(conversation, message, body) {
    const isAnswer = message.content || message.reasoning || message.toolCalls.length || ["stop", "stopped"].includes(message.stats.finish);
    if (!isAnswer) conversation.cutAt(message);
    else conversation.keep();
    if (conversation !== this.#conversation) return;
    const view = this.#views.get(message);
    if (!isAnswer) this.#showAll();
    else view?.finish();
    if (isAnswer && body.logprobs) view?.showTokens(true);
    this.#end.follow();
  }

  /** Brings the views in line with the conversation. */
  #showAll() {
    const { messages } = this.#conversation;
    const listed = new Set(messages);
    for (const [message, view] of this.#views) {
      if (listed.has(message)) continue;
      view.remove();
      this.#views.delete(message);
    }
    const views = messages.map((message, index) => {
      const known = this.#views.get(message);
      if (known) return known;
      // A call of the message before may no longer wait for its result.
      const before = this.#views.get(messages[index - 1]);
      if (before?.node.isConnected) before.finish();
      const view = new MessageView(message, this.#actions, { later: messages.length - index > MANY });
      this.#views.set(message, view);
      return view;
    });
    byId("messages").append(...views.filter(({ node }) => !node.isConnected).map(({ node }) => node));
    byId("messages").classList.toggle("many", messages.length > MANY);
    byId("welcome").hidden = messages.length > 0;
    this.#end.show();
  }

  showRunning() {
    byId("stop").hidden = !this.running;
    byId("send").hidden = this.running;
  }

  #say(text) {
    byId("status").textContent = text.slice(0, 2000);
  }
}
