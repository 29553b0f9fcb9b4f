// Choice of the model, from what the server lists.

import { chatModels } from "./api.js";
import { byId, element } from "./dom.js";
import { Problem } from "./problems.js";
import { kept } from "./storage.js";

export class Models {
  #settings;
  #onProblem;
  #select = byId("model");

  /** @param onProblem takes the problem with the list; null when it has come */
  constructor(settings, onProblem) {
    this.#settings = settings;
    this.#onProblem = onProblem;
    this.#select.addEventListener("change", () => {
      kept.set("model", this.selected);
      this.#name();
    });
    // A model that is loaded later is there when the list is looked at again.
    this.#select.addEventListener("pointerdown", () => this.load());
  }

  /** Id of the chosen model; empty leaves the choice to the server. */
  get selected() {
    return this.#select.value;
  }

  async load() {
    try {
      this.#show(await chatModels(this.#settings.key));
      this.#onProblem(null);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#onProblem(error);
    }
  }

  #show(models) {
    const ids = models.map((model) => model.id);
    const listed = [...this.#select.options].map((option) => option.value);
    if (ids.join("\n") === listed.join("\n")) return;
    const wanted = this.selected || kept.get("model");
    this.#select.replaceChildren(...ids.map((id) => element("option", { value: id, textContent: id })));
    if (ids.includes(wanted)) this.#select.value = wanted;
    this.#name();
  }

  #name() {
    byId("welcome-model").textContent = this.selected;
  }
}
