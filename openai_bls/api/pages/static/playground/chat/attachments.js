// Pictures that go out with the next message: by a button, by paste and by drop, with a preview.

import { FORMATS } from "../api/pictures.js";
import { newId } from "../conversations/store.js";
import { byId, element, symbolButton } from "../ui/dom.js";
import { chosenFiles } from "../ui/files.js";

const LARGEST_BYTES = 20 * 1024 * 1024;
const megabytes = (bytes) => `${(bytes / (1024 * 1024)).toFixed(1)} MB`;
const formats = new Intl.ListFormat("en", { type: "disjunction" }).format(Object.values(FORMATS));

export class Attachments {
  #pictures = [];
  #models;
  #button = byId("attach");
  #list = byId("attachments");
  #fault = byId("attach-fault");

  /** @param models has `selected`, and `takesPictures` of it */
  constructor(models) {
    this.#models = models;
    this.#button.addEventListener("click", () => this.choose());
    byId("prompt").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      // Text that has pictures with it, as word processors have it, is text.
      if (!files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.add(files);
    });
    const area = byId("chat");
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    area.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      area.classList.add("dropping");
    });
    area.addEventListener("dragleave", (event) => !area.contains(event.relatedTarget) && area.classList.remove("dropping"));
    area.addEventListener("drop", (event) => {
      area.classList.remove("dropping");
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
    this.refresh();
  }

  /** Lets the visitor choose files; none if they change their mind. */
  async choose() {
    this.add(await chosenFiles(Object.keys(FORMATS).join()));
  }

  /** Pictures of the next message. */
  get pictures() {
    return this.#pictures.map(({ url, ...picture }) => picture);
  }

  /** Shows what fits the chosen model. */
  refresh() {
    this.#button.hidden = !this.#models.takesPictures;
    if (this.#models.takesPictures || !this.#pictures.length) return;
    this.clear();
    this.#say(this.#onlyText());
  }

  #onlyText() {
    return `The model “${this.#models.selected}” reads text only; it takes no pictures.`;
  }

  add(files) {
    this.#say("");
    if (!files.length) return;
    if (!this.#models.takesPictures) return this.#say(this.#onlyText());
    const faults = [];
    for (const file of files) {
      const fault = faultOf(file);
      if (fault) faults.push(fault);
      else this.#pictures.push({ id: newId(), name: file.name, type: file.type, size: file.size, blob: file, url: URL.createObjectURL(file) });
    }
    this.#say(faults.join(" "));
    this.#show();
    byId("prompt").focus();
  }

  clear() {
    for (const { url } of this.#pictures) URL.revokeObjectURL(url);
    this.#pictures = [];
    this.#say("");
    this.#show();
  }

  #remove(picture) {
    URL.revokeObjectURL(picture.url);
    this.#pictures = this.#pictures.filter((one) => one !== picture);
    this.#show();
    byId("prompt").focus();
  }

  #show() {
    this.#list.hidden = !this.#pictures.length;
    this.#list.replaceChildren(
      ...this.#pictures.map((picture) =>
        element("li", {}, element("img", { src: picture.url, alt: picture.name }), symbolButton("close", `Remove ${picture.name}`, () => this.#remove(picture))),
      ),
    );
  }

  #say(text) {
    this.#fault.textContent = text;
    this.#fault.hidden = !text;
  }
}

/** Why a file cannot be attached, as a sentence; empty if it can. */
function faultOf({ name, type, size }) {
  if (!(type in FORMATS)) return `“${name}” is no picture that a model reads: it has to be ${formats}.`;
  if (size > LARGEST_BYTES) return `“${name}” has ${megabytes(size)}; a picture may have 20 MB at most.`;
  if (!size) return `“${name}” is empty.`;
  return "";
}
