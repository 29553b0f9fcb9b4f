// Reads markdown as the playground does: node blocks.mjs FOLDER < [{parts, options}] > what the blocks of each are.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder] = process.argv.slice(2);
const { blocksOf, elementsOf, htmlOf, MOST_ELEMENTS, within } = await import(pathToFileURL(`${folder}/playground/prose/blocks.js`));

// What a text makes is told by its pieces alone, not by how long this machine takes.
performance.now = () => 0;

/** A text, as a list of parts that are repeated. */
const whole = (parts) => parts.map(([part, times]) => part.repeat(times)).join("");
const count = (html, expression) => html.match(expression)?.length ?? 0;
const sum = (blocks) => blocks.reduce((all, block) => all + elementsOf(block), 0);
const letters = (text) => text.replace(/\s/g, "");

const results = JSON.parse(readFileSync(0, "utf8")).map(({ parts, options, most }) => {
  const text = whole(parts);
  const blocks = within(blocksOf(text, options), most ?? MOST_ELEMENTS);
  const html = htmlOf(blocks);
  return {
    counted: sum(blocks),
    // A table gets a frame, a block of code a frame and a button.
    made: count(html, /<[a-z]/g) + count(html, /<table/g) + 2 * count(html, /<pre>/g),
    complete: letters(blocks.map(({ raw }) => raw).join("")) === letters(text),
    types: [...new Set(blocks.map(({ type }) => type))],
    plain: blocks.filter(({ type }) => type === "plain").map(({ raw }) => raw.length),
  };
});
process.stdout.write(JSON.stringify({ most: MOST_ELEMENTS, results }));
