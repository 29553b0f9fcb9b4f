// View of one message: a question that can be edited, or an answer with what belongs to it.

import { statsInWords } from "./answer.js";
import { copyText, element, symbol, symbolButton } from "../ui/dom.js";
import { forget, whenNear } from "../prose/near.js";
import { Prose } from "../prose/prose.js";
import { tokenView } from "./token_view.js";
import { inLines, toolView } from "./tool_view.js";

export class MessageView {
  #message;
  #actions;
  #body = element("div", { className: "message-body" });
  #foot = element("div", { className: "message-foot" });
  #reasoning = element("details", { className: "reasoning" });
  #reasoningText = element("div", { className: "reasoning-text", dir: "auto" });
  #prose = new Prose();
  /** Addresses of the pictures within this page. */
  #pictures = [];
  #showsTokens = false;
  #readButton = null;
  #frame = 0;
  #notBefore = 0;

  /** @param options `later`: the text alone for now, and all of it when it comes near to what is seen
   * @param actions `again`, `edit`, `code`, `results`, `read`, `isRead`, `isLast` and `isComing`, each called with the message */
  constructor(message, actions, { later = false } = {}) {
    this.#message = message;
    this.#actions = actions;
    const isAnswer = message.role === "assistant";
    // A question reads as its text does; in an answer each paragraph does.
    if (!isAnswer) this.#body.dir = "auto";
    this.#reasoning.append(element("summary", { textContent: "Reasoning" }), this.#reasoningText);
    const label = isAnswer ? "Answer" : "You";
    this.node = element("article", { className: `message ${message.role}`, "aria-label": label }, isAnswer ? this.#reasoning : null, this.#body, this.#foot);
    if (!later || !isAnswer) return this.finish();
    this.#body.textContent = message.content;
    this.#body.classList.add("later");
    whenNear(this.node, () => this.finish());
  }

  remove() {
    this.#silence();
    cancelAnimationFrame(this.#frame);
    forget(this.node);
    this.#pictures.forEach((url) => URL.revokeObjectURL(url));
    this.node.remove();
  }

  /** Shows what has come so far, with the next frame; a long answer takes a pause of some frames. */
  update() {
    this.#frame ||= requestAnimationFrame((now) => {
      this.#frame = 0;
      if (now < this.#notBefore) return this.update();
      this.#show(true);
      // The layout counts as well.
      if (this.node.offsetHeight) this.#notBefore = now + 4 * (performance.now() - now);
    });
  }

  /** Shows the whole message. */
  finish() {
    if (this.#body.classList.contains("later")) forget(this.node);
    this.#body.classList.remove("later");
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#show(false);
  }

  #show(streaming) {
    const { role, content, reasoning, toolCalls = [] } = this.#message;
    // The first piece of the answer may come with its end.
    const grows = streaming || this.node.classList.contains("streaming");
    this.node.classList.toggle("streaming", streaming);
    this.#reasoning.hidden = !reasoning;
    if (reasoning && grows) this.#reasoning.open = !content && !toolCalls.length;
    this.#reasoningText.textContent = reasoning ?? "";
    this.#foot.replaceChildren();
    if (role === "user") this.#body.replaceChildren(...this.#question());
    else replaceParts(this.#body, this.#answer(streaming));
    if (!streaming) this.#showFoot();
  }

  #question() {
    const { content, pictures = [] } = this.#message;
    if (!pictures.length) return [content];
    if (!this.#pictures.length) this.#pictures = pictures.map(({ blob }) => URL.createObjectURL(blob));
    const shown = pictures.map(({ name }, index) => element("img", { src: this.#pictures[index], alt: name || "Picture", loading: "lazy" }));
    return [element("div", { className: "pictures" }, ...shown), content];
  }

  #answer(streaming) {
    const { content, toolCalls = [], tokens, json } = this.#message;
    const parts = [];
    if (this.#showsTokens && tokens?.length) parts.push(tokenView(tokens));
    else if (json && content) parts.push(element("pre", { className: "json", tabIndex: 0, textContent: streaming ? content : inLines(content) }));
    else if (content) {
      if (streaming) this.#prose.grow(content);
      else this.#prose.finish(content);
      parts.push(this.#prose.node);
    }
    if (toolCalls.length) {
      const waits = !streaming && this.#actions.isLast(this.#message);
      parts.push(toolView(toolCalls, waits, (results) => this.#actions.results(this.#message, results)));
    }
    if (!parts.length && streaming) parts.push(element("p", { className: "waiting" }, element("span", { className: "unseen", textContent: "Waiting for the answer" })));
    return parts;
  }

  #showFoot() {
    const { role, stats, tokens, content, isIncomplete } = this.#message;
    const isCut = isIncomplete && !this.#actions.isComing(this.#message);
    const words = isCut ? ["incomplete"] : statsInWords(stats);
    if (words.length) this.#foot.append(element("p", { className: "stats" }, ...words.map((text, index) => element("span", { textContent: index < words.length - 1 ? `${text} · ` : text }))));
    const copy = symbolButton("copy", "Copy", () => copyText(content, copy, (done) => copy.classList.toggle("done", done)));
    const buttons = [copy, symbolButton("edit", "Edit", () => this.edit())];
    if (role === "assistant") {
      if (content) buttons.push(this.#readingButton());
      if (tokens?.length) buttons.push(this.#tokensButton());
      buttons.push(symbolButton("again", "Regenerate", () => this.#actions.again(this.#message)));
      buttons.push(symbolButton("code", "Show the request", () => this.#actions.code(this.#message)));
    }
    this.#foot.append(element("div", { className: "message-actions" }, ...buttons));
  }

  #readingButton() {
    this.#readButton = symbolButton("speaker", "Read aloud", () => this.#actions.read(this.#message));
    this.#readButton.classList.add("read-aloud");
    this.showRead();
    return this.#readButton;
  }

  /** Shows whether the answer is read aloud. */
  showRead() {
    this.#readButton?.setAttribute("aria-pressed", String(this.#actions.isRead(this.#message)));
  }

  /** Stops reading it aloud, where the button for that goes. */
  #silence() {
    if (this.#actions.isRead(this.#message)) this.#actions.read(this.#message);
  }

  #tokensButton() {
    const toggle = () => {
      this.showTokens(!this.#showsTokens);
      this.#foot.querySelector("[aria-pressed]:not(.read-aloud)").focus();
    };
    return element(
      "button",
      { type: "button", className: "button quiet small", title: "Show the tokens", "aria-pressed": String(this.#showsTokens), onclick: toggle },
      symbol("tokens"),
      "Tokens",
    );
  }

  /** Shows the coloured tokens instead of the text, where there are any. */
  showTokens(shows) {
    this.#showsTokens = shows;
    this.finish();
  }

  /** Opens the message for editing. */
  edit() {
    this.#silence();
    const { role, content } = this.#message;
    const isQuestion = role === "user";
    const field = element("textarea", { className: "input", value: content, rows: Math.min(12, content.split("\n").length + 1), "aria-label": "Edit the message" });
    const cancel = () => this.finish();
    const save = () => this.#actions.edit(this.#message, field.value);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") cancel();
      else if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      else save();
      event.preventDefault();
      event.stopPropagation();
    });
    this.#body.replaceChildren(
      ...(isQuestion ? this.#question().filter((part) => part !== content) : []),
      field,
      element(
        "div",
        { className: "edit-buttons" },
        element("button", { type: "button", className: "button small", textContent: "Cancel", onclick: cancel }),
        element("button", { type: "button", className: "button small primary", textContent: isQuestion ? "Send again" : "Save", onclick: save }),
      ),
    );
    this.#foot.replaceChildren();
    field.focus();
  }
}

/** The parts in a box; those that are there already stay as they are, with what is selected in them. */
function replaceParts(box, parts) {
  const shown = [...box.childNodes];
  if (shown.length === parts.length && shown.every((node, index) => node === parts[index])) return;
  box.replaceChildren(...parts);
}
