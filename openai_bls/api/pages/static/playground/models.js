// Choice of the model, from what the server lists.

import { allModels } from "./api/api.js";
import { byId, element } from "./ui/dom.js";
import { Problem } from "./problems.js";
import { kept } from "./ui/storage.js";

const chats = ({ task }) => !task || task === "generate" || task === "chat";

export class Models {
  #settings;
  #cards = new Map();
  #others = [];
  #onProblem;
  #onChosen;
  #select = byId("model");

  /** @param onProblem takes the problem with the list; null when it has come
   * @param onChosen is called when another model is chosen, or more is known of it */
  constructor(settings, onProblem, onChosen) {
    [this.#settings, this.#onProblem, this.#onChosen] = [settings, onProblem, onChosen];
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

  /** True if the chosen model reads pictures, by its card. */
  get takesPictures() {
    return this.#cards.get(this.selected)?.input_modalities?.includes("image") === true;
  }

  /** Id of the first model of a task, such as `speech`; undefined if there is none. */
  of(task) {
    return this.#others.find((model) => model.task === task)?.id;
  }

  async load() {
    try {
      this.#show(await allModels(this.#settings.key));
      this.#onProblem(null);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#onProblem(error);
    }
  }

  #show(models) {
    this.#cards = new Map(models.filter(chats).map((model) => [model.id, model]));
    this.#others = models.filter((model) => !chats(model));
    const ids = [...this.#cards.keys()];
    this.#fill(ids);
    this.#name();
  }

  #fill(ids) {
    const listed = [...this.#select.options].map((option) => option.value);
    if (ids.join("\n") === listed.join("\n")) return;
    const wanted = this.selected || kept.get("model");
    this.#select.replaceChildren(...ids.map((id) => element("option", { value: id, textContent: id })));
    if (ids.includes(wanted)) this.#select.value = wanted;
  }

  #name() {
    byId("welcome-model").textContent = this.selected;
    this.#onChosen();
  }
}
