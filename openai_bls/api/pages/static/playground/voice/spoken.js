// Words of an answer as they are spoken: markdown without its marks and its code, in pieces that are spoken one by one.

import { blocksOf } from "../prose/blocks.js";

/** Characters of a piece: fewer than the 4,096 that the server takes, since a piece is heard when all of it is spoken. */
export const MOST = 600;
/** Of the first one, for which the listener waits. */
const MOST_OF_FIRST = 150;

/** Blocks that are not words. */
const SILENT = ["blockMath", "code", "def", "hr", "space"];

/** Text without tags. */
const untagged = (text) => text.replace(/<[^<>]*>/g, " ");

function wordsOf({ type, text = "", raw, tokens }) {
  if (type === "br") return " ";
  if (type === "checkbox") return "";
  if (type === "html") return untagged(raw);
  return tokens?.map(wordsOf).join("") ?? text;
}

/** Texts of blocks: paragraphs, items of lists, rows of tables. */
function textsOf({ type, items, header, rows, ...block }) {
  if (SILENT.includes(type)) return [];
  if (type === "list") return items.flatMap(({ tokens }) => tokens.flatMap(textsOf));
  if (type === "blockquote") return block.tokens.flatMap(textsOf);
  if (type === "table") return [header, ...rows].map((row) => row.map(wordsOf).join(", "));
  return [wordsOf({ type, ...block })];
}

/** A text whose end is heard: headings and items of lists have no mark there. */
const ended = (text) => text.replace(/[\p{L}\p{N}]$/u, "$&.");

const sentences = new Intl.Segmenter(undefined, { granularity: "sentence" });

/** Parts of a sentence, cut between words where it is too long, and never within a character. */
function* cut(sentence) {
  let rest = sentence;
  while (rest.length > MOST) {
    const part = rest.slice(0, MOST).replace(/[\uD800-\uDBFF]$/, "");
    const end = part.lastIndexOf(" ") > 0 ? part.lastIndexOf(" ") : part.length;
    yield rest.slice(0, end);
    rest = rest.slice(end).trimStart();
  }
  if (rest) yield rest;
}

/** Pieces of an answer, in markdown; none if there are no words in it. */
export function piecesOf(markdown) {
  const texts = blocksOf(markdown).flatMap(textsOf).map((text) => ended(text.replace(/\s+/g, " ").trim()));
  const pieces = [];
  for (const text of texts) {
    for (const { segment } of sentences.segment(text)) {
      for (const part of cut(segment.trim())) {
        const longer = `${pieces.at(-1) ?? ""} ${part}`.trimStart();
        if (longer.length <= (pieces.length > 1 ? MOST : MOST_OF_FIRST)) pieces.splice(-1, 1, longer);
        else pieces.push(part);
      }
    }
  }
  return pieces.filter((piece) => /[\p{L}\p{N}]/u.test(piece));
}
