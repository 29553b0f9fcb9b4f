// Markdown of a model's answer → a safe piece of the document. What the model writes is never trusted.

import { Marked } from "../vendor/marked/marked.esm.js";
import "../vendor/dompurify/purify.min.js";
import { copyText, element } from "./dom.js";

const parser = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    // HTML in an answer is text, as the model wrote it.
    html: ({ text }) => escaped(text),
    // Nothing is loaded from elsewhere: the address of an image could carry the conversation away.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

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

function escaped(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

/** What reads from right to left if its text does. */
const DIRECTED = "p, h1, h2, h3, h4, h5, h6, ul, ol, blockquote, table";

/** The markdown as a fragment: links open elsewhere and tell nothing of this page, blocks of code have a copy button. */
export function rendered(text) {
  const fragment = DOMPurify.sanitize(parser.parse(text), ALLOWED);
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
  for (const block of fragment.querySelectorAll("pre")) {
    const frame = element("div", { className: "code-block" });
    block.replaceWith(frame);
    block.tabIndex = 0;
    frame.append(block, copyButton(() => block.textContent));
  }
  return fragment;
}

function copyButton(text) {
  const button = element("button", { type: "button", className: "button small", textContent: "Copy" });
  button.addEventListener("click", () => copyText(text(), button, (done) => (button.textContent = done ? "Copied" : "Copy")));
  return button;
}
