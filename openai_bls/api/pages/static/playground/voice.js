// Voice: dictation where a model of the server hears, answers read aloud where one speaks. Its parts are loaded only then.

import { byId } from "./ui/dom.js";

export class Voice {
  #models;
  #make;
  #loading = null;
  #dictation = null;
  #reader = null;

  /** @param models has the model of a task, by `of`
   * @param make `dictation(Dictation)` and `reader(Reader)` make the parts of their classes */
  constructor(models, make) {
    [this.#models, this.#make] = [models, make];
  }

  /** Shows what the models of the server can do. */
  async refresh() {
    const speaks = Boolean(this.#models.of("speech"));
    if (!speaks && !this.#models.of("transcription") && !this.#dictation) return;
    this.#loading ??= this.#load();
    try {
      await this.#loading;
    } catch {
      // After a connection that broke, the next list of models tries again.
      this.#loading = null;
      return;
    }
    this.#dictation.refresh();
    byId("messages").classList.toggle("voiced", Boolean(this.#models.of("speech")));
  }

  async #load() {
    const [{ Dictation }, { Reader }] = await Promise.all([import("./voice/dictation.js"), import("./voice/reader.js")]);
    [this.#dictation, this.#reader] = [this.#make.dictation(Dictation), this.#make.reader(Reader)];
  }

  /** Reads an answer aloud, or stops reading it. */
  read(message) {
    this.#reader?.toggle(message);
  }

  /** Throws away what is being dictated; false if nothing is. */
  drop() {
    return this.#dictation?.drop() ?? false;
  }
}
