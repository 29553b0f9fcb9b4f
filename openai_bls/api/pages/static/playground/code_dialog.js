// Dialog that shows a request as text to copy.

import { ROOT } from "./api.js";
import { byId, copyText, element } from "./dom.js";
import { FORMS } from "./snippets.js";
import { Tabs } from "./tabs.js";

export class CodeDialog {
  #body = {};
  #hasKey;

  /** @param hasKey whether requests have a key, as a function */
  constructor(hasKey) {
    this.#hasKey = hasKey;
    const tabs = Object.keys(FORMS).map((name) =>
      element("button", { type: "button", role: "tab", id: `code-${name}`, textContent: name, "aria-controls": "code-panel", data: { form: name } }),
    );
    byId("code-tabs").append(...tabs);
    this.tabs = new Tabs(byId("code-tabs"), (tab) => this.#show(tab));
    byId("code-close").addEventListener("click", () => byId("code-dialog").close());
    byId("code-copy").addEventListener("click", ({ currentTarget: button }) =>
      copyText(byId("code-text").textContent, button, (done) => (button.lastElementChild.textContent = done ? "Copied" : "Copy")),
    );
  }

  open(body) {
    this.#body = body;
    this.#show(this.tabs.selected);
    byId("code-dialog").showModal();
  }

  #show(tab) {
    const { text, note } = FORMS[tab.dataset.form];
    const hasKey = this.#hasKey();
    byId("code-text").textContent = text(this.#body, ROOT, hasKey);
    byId("code-note").textContent = [note, hasKey && "Put your key into the variable OPENAI_API_KEY."].filter(Boolean).join(" ");
    byId("code-panel").setAttribute("aria-labelledby", tab.id);
  }
}
