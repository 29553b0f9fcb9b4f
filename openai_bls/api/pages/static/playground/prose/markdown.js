// Blocks of a model's answer → safe pieces of the document. What the model writes is never trusted.

import "../../vendor/dompurify/purify.min.js";
import { copyText, element } from "../ui/dom.js";
import { blocksOf, htmlOf } from "./blocks.js";
import { colourCode, languageOf } from "./code_colours.js";
import { drawMath } from "./math.js";
import { whenNear } from "./near.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p", "pre",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "start", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  // No addresses, whatever they look like.
  ADD_URI_SAFE_ATTR: ["align", "checked", "disabled", "start", "type"],
  RETURN_DOM_FRAGMENT: true,
};

/** What reads from right to left if its text does. */
const DIRECTED = "p, h1, h2, h3, h4, h5, h6, ul, ol, blockquote, table";

/** Blocks as a fragment: links open elsewhere and tell nothing of this page, blocks of code have a copy button.
 * Formulas are drawn, and code is coloured, when they come near to what is seen.
 * @param plain leaves them as they are */
export function fragmentOf(blocks, { plain = false } = {}) {
  const fragment = DOMPurify.sanitize(htmlOf(blocks), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    // An address that is not allowed has been taken out.
    if (!link.hasAttribute("href")) {
      link.replaceWith(...link.childNodes);
      continue;
    }
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    link.title = link.href;
  }
  for (const box of fragment.querySelectorAll("input")) {
    if (box.type !== "checkbox") box.remove();
    else box.disabled = true;
  }
  for (const block of fragment.querySelectorAll(DIRECTED)) block.dir = "auto";
  for (const table of fragment.querySelectorAll("table")) {
    const frame = element("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const block of fragment.querySelectorAll("pre:not(.math)")) frameCode(block, plain);
  for (const formula of fragment.querySelectorAll("pre.math")) formula.tabIndex = 0;
  if (!plain) for (const formula of fragment.querySelectorAll(".math")) whenNear(formula, drawMath);
  return fragment;
}

/** The whole of a text as a fragment. */
export const rendered = (text) => fragmentOf(blocksOf(text));

function frameCode(block, plain) {
  const frame = element("div", { className: "code-block" });
  const code = block.querySelector("code");
  const language = code ? languageOf(code) : "";
  block.replaceWith(frame);
  block.tabIndex = 0;
  frame.append(block, copyButton(() => block.textContent));
  if (!language) return;
  frame.dataset.language = language;
  if (!plain) whenNear(frame, () => colourCode(code));
}

function copyButton(text) {
  const button = element("button", { type: "button", className: "button small", textContent: "Copy" });
  button.addEventListener("click", () => copyText(text(), button, (done) => (button.textContent = done ? "Copied" : "Copy")));
  return button;
}
