// Settings of requests: the form, kept over a reload; the key stays in this tab.

import { byId } from "../ui/dom.js";
import { EXAMPLE_SCHEMA, EXAMPLE_TOOLS } from "./request_body.js";
import { kept, keptJson, ofThisTab } from "../ui/storage.js";

const KEY = "key";

export class Settings {
  #form = byId("settings-form");
  #controls = [...this.#form.elements].filter((control) => control.name);
  /** Is called when a setting has changed. */
  onChanged = () => {};

  /** @param onKey is called when the key has changed */
  constructor(onKey) {
    const values = { schema: JSON.stringify(EXAMPLE_SCHEMA, null, 2), ...keptJson("settings", {}) };
    for (const control of this.#controls) this.#set(control, control.name === KEY ? ofThisTab.get(KEY) : values[control.name]);
    this.#openParts();
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("input", ({ target }) => this.#changed(target));
    this.#form.addEventListener("change", ({ target }) => target.name === KEY && onKey());
    this.#form.addEventListener("reset", () =>
      // The form is empty only after this event.
      queueMicrotask(() => {
        byId("schema").value ||= JSON.stringify(EXAMPLE_SCHEMA, null, 2);
        byId(KEY).value = this.key;
        this.#changed();
      }),
    );
    byId("tools-example").addEventListener("click", () => {
      byId("tools").value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
      this.#changed(byId("tools"));
    });
    this.#changed();
  }

  get key() {
    return ofThisTab.get(KEY) ?? "";
  }

  /** Name → value of all but the key. */
  values() {
    const listed = this.#controls.filter((control) => control.name !== KEY);
    return Object.fromEntries(listed.map((control) => [control.name, control.type === "checkbox" ? control.checked : control.value]));
  }

  /** Takes settings over; those that are not named stay as they are. */
  apply(values) {
    for (const control of this.#controls) if (control.name !== KEY) this.#set(control, values[control.name]);
    this.#openParts();
    this.#changed();
  }

  /** Opens the parts in which something is set. */
  #openParts() {
    for (const part of this.#form.querySelectorAll("details")) {
      part.open ||= [...part.querySelectorAll("input, textarea")].some(({ value }) => value);
    }
  }

  #set(control, value) {
    if (value === undefined || value === null) return;
    if (control.type === "checkbox") control.checked = value === true;
    else control.value = value;
  }

  #changed(control) {
    if (control?.name === KEY) ofThisTab.set(KEY, control.value.trim());
    kept.set("settings", JSON.stringify(this.values()));
    byId("schema-part").hidden = byId("format").value !== "json_schema";
    for (const field of ["schema", "tools"]) this.#check(byId(field), byId(`${field}-fault`));
    this.onChanged();
  }

  /** Says below a field of JSON what is wrong with it. */
  #check(field, fault) {
    let sentence = "";
    try {
      if (field.value.trim()) JSON.parse(field.value);
    } catch (error) {
      sentence = `Not JSON yet: ${error.message}`;
    }
    field.setAttribute("aria-invalid", String(Boolean(sentence)));
    fault.textContent = sentence;
    fault.hidden = !sentence;
  }
}
