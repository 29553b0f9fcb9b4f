// Presets: settings under a name. A few come with the page, others are the visitor's own.

import { byId, element } from "../ui/dom.js";
import { kept, keptJson } from "../ui/storage.js";

const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"];
const none = Object.fromEntries(SAMPLING.map((name) => [name, ""]));

/** Sampling alone: all else stays as it is. */
const BUILT_IN = {
  "The model's defaults": none,
  Exact: { ...none, temperature: "0" },
  Balanced: { ...none, temperature: "0.7", top_p: "0.9" },
  Inventive: { ...none, temperature: "1.1", min_p: "0.05" },
};
const MOST = 100;

const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export class Presets {
  #settings;
  #select = byId("preset");
  #own;

  /** @param settings has `values()` and `apply(values)`, and calls `onChanged` */
  constructor(settings) {
    this.#settings = settings;
    const found = keptJson("presets", {});
    this.#own = isRecord(found) ? Object.fromEntries(Object.entries(found).filter(([, values]) => isRecord(values)).slice(0, MOST)) : {};
    // Ahead of the form, which would show what the settings still are.
    this.#select.addEventListener("input", () => this.#chosen());
    byId("preset-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save(byId("preset-name").value.trim());
    });
    byId("preset-save").addEventListener("click", () => {
      byId("preset-name").value = this.#select.value in this.#own ? this.#select.value : "";
      byId("preset-dialog").showModal();
    });
    for (const id of ["preset-close", "preset-cancel"]) byId(id).addEventListener("click", () => byId("preset-dialog").close());
    byId("preset-delete").addEventListener("click", () => this.#delete());
    settings.onChanged = () => this.#mark();
    this.#list();
  }

  #all() {
    return { ...BUILT_IN, ...this.#own };
  }

  #list() {
    const group = (label, presets) => element("optgroup", { label }, ...Object.keys(presets).map((name) => element("option", { value: name, textContent: name })));
    const groups = [group("Sampling", BUILT_IN)];
    if (Object.keys(this.#own).length) groups.push(group("Your own", this.#own));
    this.#select.replaceChildren(element("option", { value: "", textContent: "None", hidden: true }), ...groups);
    this.#mark();
  }

  #chosen() {
    const values = this.#all()[this.#select.value];
    if (values) this.#settings.apply(values);
  }

  /** Shows the preset that the settings are, if they are one; the visitor's own first, for they say more. */
  #mark() {
    const values = this.#settings.values();
    const is = ([, preset]) => Object.entries(preset).every(([name, value]) => !(name in values) || values[name] === value);
    const found = Object.entries(this.#own).find(is) ?? Object.entries(BUILT_IN).find(is);
    this.#select.value = found?.[0] ?? "";
    byId("preset-delete").hidden = !(this.#select.value in this.#own);
  }

  #save(name) {
    if (!name) return;
    if (name in BUILT_IN) return byId("preset-fault").replaceChildren("A preset of the page has this name; choose another.");
    byId("preset-fault").replaceChildren();
    this.#own[name] = this.#settings.values();
    this.#keep();
    byId("preset-dialog").close();
  }

  #delete() {
    delete this.#own[this.#select.value];
    this.#keep();
    this.#select.focus();
  }

  #keep() {
    kept.set("presets", JSON.stringify(this.#own));
    this.#list();
  }
}
