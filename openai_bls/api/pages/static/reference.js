// Reference page of the API: commands for this server, a list that folds on a phone, buttons that copy.
"use strict";

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
document.addEventListener("click", async (event) => {
  if (event.target.matches("nav a") && !wide.matches) contents.open = false;
  if (!event.target.matches("figure button")) return;
  const code = event.target.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    event.target.textContent = "Copied";
  } catch {
    // Browsers lend the clipboard to https and localhost alone.
    getSelection().selectAllChildren(code);
    event.target.textContent = "Selected";
  }
});
