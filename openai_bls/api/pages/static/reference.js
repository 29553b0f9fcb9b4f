// Reference page of the API: commands for this server, a list that folds on a phone, a filter, buttons that copy and try.

import { filter } from "./reference_filter.js";
import { tryForm } from "./reference_try.js";

// Commands name the server that this page came from, with the path that a proxy may put before it.
const root = new URL("./", document.baseURI).href.replace(/\/$/, "");
for (const code of document.querySelectorAll("figure code, [data-origin]")) {
  code.textContent = code.textContent.replaceAll("http://localhost:9000", root);
}
// A phone begins with the list closed; a wide window shows it beside the text.
const contents = document.querySelector("nav details");
const wide = matchMedia("(min-width: 56rem)");
const show = () => { contents.open = wide.matches; };
wide.addEventListener("change", show);
show();
const field = document.querySelector("#filter");
const count = document.querySelector("#filter-count");
field.addEventListener("input", () => {
  const found = filter(field.value);
  count.textContent = field.value.trim() ? `${found} found` : "";
  contents.open ||= field.value.trim() !== "";
});
for (const figure of document.querySelectorAll("figure[data-path]")) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", textContent: "Try it", className: "try-button" });
  button.addEventListener("click", () => {
    const shown = figure.querySelector("form");
    if (shown) return void (shown.hidden = !shown.hidden);
    figure.append(tryForm(figure));
    figure.querySelector("form textarea, form input").focus();
  });
  figure.querySelector(".buttons").append(button);
}
document.addEventListener("click", async (event) => {
  if (event.target.matches("nav a") && !wide.matches) contents.open = false;
  if (!event.target.matches("button.copy")) return;
  const code = event.target.closest("figure").querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    event.target.textContent = "Copied";
  } catch {
    // Browsers lend the clipboard to https and localhost alone.
    getSelection().selectAllChildren(code);
    event.target.textContent = "Selected";
  }
});
