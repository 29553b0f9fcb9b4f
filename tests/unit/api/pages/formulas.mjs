// Finds formulas as the playground does: node formulas.mjs FOLDER < {"texts": [...]} > one array of tokens for each.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${folder}/${path}`));
const { Marked } = await load("vendor/marked/marked.esm.js");
const { Formulas } = await load("playground/prose/formulas.js");
const { mathExtensions } = await load("playground/prose/math.js");

let grows = false;
const formulas = new Formulas();
const parser = new Marked({ gfm: true, breaks: true, extensions: mathExtensions((text) => text, formulas, () => grows) });

/** All tokens of maths. */
function* found(tokens) {
  for (const token of tokens) {
    if (token.type.endsWith("Math")) yield token;
    for (const below of [token.tokens, token.items]) if (below) yield* found(below);
  }
}

/** A text, as a list of parts that are repeated. */
const whole = (parts) => parts.map(([part, times]) => part.repeat(times)).join("");

const results = JSON.parse(readFileSync(0, "utf8")).map(({ parts, grows: more }) => {
  const text = whole(parts);
  grows = more;
  formulas.begin(text.length);
  const before = formulas.left;
  const tokens = new parser.Lexer(parser.defaults).lex(text);
  const steps = before - formulas.left;
  return {
    steps,
    raw: tokens.map(({ raw }) => raw).join("") === text,
    math: text.length > 1000 ? [] : [...found(tokens)].map(({ type, raw, text: formula, display }) => [type, raw, formula, display]),
  };
});
process.stdout.write(JSON.stringify(results));
