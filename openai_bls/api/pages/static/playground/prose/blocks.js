// Markdown of a model's answer → blocks, and their HTML. What one text makes is bounded in time and in elements.

import { Marked } from "../../vendor/marked/marked.esm.js";
import { Formulas } from "./formulas.js";
import { mathExtensions } from "./math.js";

/** Elements that a text makes. The rest of it is shown as it was written: how many there are goes by its pieces and not
 * by its length, and nothing else happens in the page while they are made. */
export const MOST_ELEMENTS = 5000;

/** True while the text that is read may go on. */
let grows = false;

/** Milliseconds for the markdown of a whole text, and for that of one that still grows: nothing else happens meanwhile.
 * Nested emphasis takes marked time by the square of its length. */
const MOST = 1000;
const MOST_WHILE_IT_GROWS = 100;

/** When the reading of the text is given up, as `performance.now()` tells it. */
let deadline = Infinity;

const formulas = new Formulas();

/** Cells of tables that the text may still have: a row of one character has as many as the longest. */
let cells = 0;

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
  tokenizer: {
    table(text) {
      const raw = this.rules.block.table.exec(text)?.[0];
      if (!raw) return undefined;
      const [head, , ...rows] = raw.trim().split("\n");
      cells -= (1 + rows.length) * head.split("|").filter(Boolean).length;
      return cells < 0 ? { type: "plain", raw, text: raw } : false;
    },
  },
  renderer: {
    // HTML in an answer is text, as the model wrote it.
    html: ({ text }) => escaped(text),
    // Nothing is loaded from elsewhere: the address of an image could carry the conversation away.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

function escaped(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

/** The blocks of a text, as marked's tokens: their `raw` texts, one after the other, are the text. Long lists come in parts.
 * A text that takes too long, or is nested too deeply, is one block of the type `plain`; so is what makes more than `elements`.
 * @param options `mayGrow`: more may follow; `links`: definitions of links that stood before */
export function blocksOf(text, { mayGrow = false, links = {}, elements = MOST_ELEMENTS } = {}) {
  const lexer = new parser.Lexer(parser.defaults);
  Object.assign(lexer.tokens.links, links);
  grows = mayGrow;
  formulas.begin(text.length);
  cells = elements;
  deadline = performance.now() + (mayGrow ? MOST_WHILE_IT_GROWS : MOST);
  try {
    const blocks = lexer.lex(text);
    return Object.assign(within(blocks.flatMap(inParts), elements), { links: blocks.links });
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return Object.assign([plainBlock(text)], { links: {} });
  } finally {
    grows = false;
    deadline = Infinity;
  }
}

/** A text as one block that is shown as it was written. */
const plainBlock = (text) => ({ type: "plain", raw: text, text });

/** Blocks of which the first make at most so many elements; what follows these is one block of the type `plain`. */
export function within(blocks, elements) {
  let left = elements;
  const first = blocks.findIndex((block) => (left -= elementsOf(block)) < 0);
  if (first < 0) return blocks;
  return [...blocks.slice(0, first), plainBlock(blocks.slice(first).map(({ raw }) => raw).join(""))];
}

/** Elements that tokens make, with what is around them. */
const sum = (tokens) => tokens.reduce((all, token) => all + elementsOf(token), 0);

/** Elements that a token makes, with what is around them. */
export function elementsOf({ type, tokens = [], items = [], header, rows }) {
  // Of a table its frame, itself, its head with a row, and its body.
  if (type === "table") {
    const all = [header, ...rows].flat();
    return 4 + Math.sign(rows.length) + rows.length + all.length + sum(all.flatMap((cell) => cell.tokens));
  }
  return (ELEMENTS[type] ?? 1) + sum(tokens) + sum(items);
}

/** Elements of a token by its type, where they are not one: code has a frame and a button. */
const ELEMENTS = { code: 4, def: 0, escape: 0, html: 0, space: 0, text: 0 };

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

/** Blocks as HTML. */
export function htmlOf(blocks) {
  try {
    return parser.parser(blocks);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return blocks.map(({ raw }) => plainText(raw)).join("");
  }
}

