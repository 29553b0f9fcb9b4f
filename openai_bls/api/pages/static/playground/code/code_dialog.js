// Dialog that shows a request as text to copy.

import { ROOT } from "../api/api.js";
import { abbreviated, hasPictures } from "../api/pictures.js";
import { byId, copyText, element } from "../ui/dom.js";
import { FORMS } from "./snippets.js";
import { Tabs } from "../ui/tabs.js";

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

  async open(body) {
    this.#body = await abbreviated(body);
    this.#show(this.tabs.selected);
    byId("code-dialog").showModal();
  }

  #show(tab) {
    const { text, note } = FORMS[tab.dataset.form];
    const hasKey = this.#hasKey();
    byId("code-text").textContent = text(this.#body, ROOT, hasKey);
    byId("code-note").textContent = [note, hasKey && "Put your key into the variable OPENAI_API_KEY.", hasPictures(this.#body) && "Put the base64 text of each picture in the place of “…”."].filter(Boolean).join(" ");
    byId("code-panel").setAttribute("aria-labelledby", tab.id);
  }
}
