// Files: a text that the visitor keeps, and files that they choose.

import { element } from "./dom.js";

/** Characters that no system takes in a file's name, and too many of others. */
const fileName = (text) => text.replace(/[\\/:*?"<>|\p{C}]+/gu, " ").trim().slice(0, 80) || "conversation";

/** Hands a text to the browser as a file. */
export function download(name, ending, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: `${fileName(name)}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Lets the visitor choose files; none if they change their mind. */
export function chosenFiles(accept) {
  return new Promise((resolve) => {
    const field = element("input", { type: "file", accept, multiple: true });
    field.addEventListener("change", () => resolve([...field.files]));
    field.addEventListener("cancel", () => resolve([]));
    field.click();
  });
}
