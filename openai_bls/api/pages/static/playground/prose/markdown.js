// Markdown of a model's answer → safe pieces of the document. What the model writes is never trusted.

import { Marked } from "../../vendor/marked/marked.esm.js";
import "../../vendor/dompurify/purify.min.js";
import { copyText, element } from "../ui/dom.js";
import { colourCode, languageOf } from "./code_colours.js";
import { Formulas } from "./formulas.js";
import { drawMath, mathExtensions } from "./math.js";
import { whenNear } from "./near.js";

/** True while the text that is read may go on. */
let grows = false;

/** Milliseconds for the markdown of a whole text, and for that of one that still grows: nothing else happens meanwhile.
 * Nested emphasis takes marked time by the square of its length. */
const MOST = 1000;
const MOST_WHILE_IT_GROWS = 100;

/** When the reading of the text is given up, as `performance.now()` tells it. */
let deadline = Infinity;

const formulas = new Formulas();

/** Extension of marked that is asked before each token, and ends the reading after the deadline. */
const watch = (level) => ({
  name: `${level}Watch`,
  level,
  tokenizer() {
    if (performance.now() > deadline) throw new RangeError("The text takes too long to read.");
  },
});

const plainText = (text) => `<p class="plain">${escaped(text)}</p>`;

const parser = new Marked({
  gfm: true,
  breaks: true,
  extensions: [
    ...mathExtensions(escaped, formulas, () => grows),
    watch("block"),
    watch("inline"),
    { name: "plain", renderer: ({ text }) => plainText(text) },
  ],
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

/** The blocks of a text, as marked's tokens: their `raw` texts, one after the other, are the text. Long lists come in parts.
 * A text that takes too long, or is nested too deeply, is one block of the type `plain`.
 * @param options `mayGrow`: more may follow; `links`: definitions of links that stood before */
export function blocksOf(text, { mayGrow = false, links = {} } = {}) {
  const lexer = new parser.Lexer(parser.defaults);
  Object.assign(lexer.tokens.links, links);
  grows = mayGrow;
  formulas.begin(text.length);
  deadline = performance.now() + (mayGrow ? MOST_WHILE_IT_GROWS : MOST);
  try {
    const blocks = lexer.lex(text);
    return Object.assign(blocks.flatMap(inParts), { links: blocks.links });
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return plainBlocks(text);
  } finally {
    grows = false;
    deadline = Infinity;
  }
}

/** A text as one block that is shown as it was written. */
export const plainBlocks = (text) => Object.assign([{ type: "plain", raw: text, text }], { links: {} });

/** Items of the longest list that is one element. */
const LONG_LIST = 100;

function inParts(block) {
  if (block.type !== "list" || block.items.length <= LONG_LIST) return [block];
  const parts = [];
  for (let first = 0; first < block.items.length; first += LONG_LIST) {
    const items = block.items.slice(first, first + LONG_LIST);
    parts.push({ ...block, items, raw: items.map(({ raw }) => raw).join(""), start: block.ordered ? block.start + first : block.start });
  }
  return parts;
}

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

function htmlOf(blocks) {
  try {
    return parser.parser(blocks);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return blocks.map(({ raw }) => plainText(raw)).join("");
  }
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
