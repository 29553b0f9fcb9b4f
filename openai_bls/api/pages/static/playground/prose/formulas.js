// Where LaTeX begins and ends in markdown. What a model writes costs steps in proportion to its length, whatever it is.

/** Steps of all scans of a text, for each of its characters. Prose takes some two; what begins formulas without end,
 * again and again, stays text from there on. */
const STEPS = 16;

const BLOCK_START = /\n {0,3}(?:\$\$|\\\[)|\n[ \t]*(?=\n)/;
// Marked's own text ends there at the latest, so that what follows is looked at again.
const PLAIN = /^(?:(?!www\.|https?:\/\/|ftp:\/\/)[^\\<![`*~_$\n@])*/i;

/** Finds the formulas of one text after the other. */
export class Formulas {
  #left = 0;

  /** The next text is of this length. */
  begin(length) {
    this.#left = STEPS * (length + 100);
  }

  /** Steps that the text may still take. */
  get left() {
    return this.#left;
  }

  /** The formula that is a block at the beginning of `text`; null if there is none.
   * @param grows whether more may follow, so that a formula that has begun is one */
  block(text, grows) {
    let at = 0;
    while (at < 3 && text[at] === " ") at++;
    const opener = text.slice(at, at + 2);
    if (opener !== "$$" && opener !== "\\[") return null;
    const first = at + 2;
    const end = opener === "$$" ? this.#dollars(text, first, true) : this.#bracket(text, first, "]", true);
    if (end > first) {
      const after = lineEnd(text, end + 2);
      if (after >= 0) return { raw: text.slice(0, after), text: text.slice(first, end).trim() };
    }
    // Asked in any case: what looked like a block costs marked such a walk, too, as its paragraph goes on behind it.
    return this.#isOneParagraph(text, first) && grows ? { raw: text, text } : null;
  }

  /** Where a block may begin within the paragraph that `text` begins with; undefined if nowhere. */
  blockStart(text) {
    const found = this.#left > 0 ? BLOCK_START.exec(text) : null;
    return found && /[$[]$/.test(found[0]) ? found.index : undefined;
  }

  /** The formula within a line at the beginning of `text`; null if there is none. */
  inline(text) {
    const opener = text.slice(0, 2);
    const display = opener === "$$" || opener === "\\[";
    let [first, end] = [2, -1];
    if (opener === "$$") end = this.#dollars(text, 2, false);
    else if (opener === "\\[" || opener === "\\(") end = this.#bracket(text, 2, opener === "\\[" ? "]" : ")", false);
    else if (text[0] === "$") [first, end] = [1, this.#dollar(text)];
    if (end <= first) return null;
    return { raw: text.slice(0, end + (first === 1 ? 1 : 2)), text: text.slice(first, end).trim(), display };
  }

  /** Place of the `$$` that closes; -1 without one. */
  #dollars(text, first, isBlock) {
    for (let at = first; at < text.length && this.#step(); at++) {
      const character = text[at];
      if (character === "\\" && text[at + 1] !== "\n") at++;
      else if (character === "$" && text[at + 1] === "$") return at;
      else if (!isBlock && (character === "$" || character === "\\")) return -1;
      else if (character === "\n" && (!isBlock || this.#isBlank(text, at + 1))) return -1;
    }
    return -1;
  }

  /** Place of the `$` that closes; -1 without one. As pandoc has it, so that $5 and $10 stay amounts of money. */
  #dollar(text) {
    if (/^\s/.test(text.slice(1, 2))) return -1;
    for (let at = 1; at < text.length && this.#step(); at++) {
      const character = text[at];
      if (character === "$") return /\s/.test(text[at - 1]) || /\d/.test(text.slice(at + 1, at + 2)) ? -1 : at;
      if (character === "\n") return -1;
      if (character === "\\" && text[++at] === "\n") return -1;
    }
    return -1;
  }

  /** Place of the `\]` or `\)` that closes; -1 without one.
   * @param isBlock whether nothing may follow it in its line */
  #bracket(text, first, closer, isBlock) {
    for (let at = first; at < text.length && this.#step(); at++) {
      if (text[at] === "\n" && this.#isBlank(text, at + 1)) return -1;
      if (at > first && text[at] === "\\" && text[at + 1] === closer && (!isBlock || lineEnd(text, at + 2) >= 0)) return at;
    }
    return -1;
  }

  #isOneParagraph(text, first) {
    for (let at = first; at < text.length; at++) {
      if (!this.#step() || (text[at] === "\n" && this.#isBlank(text, at + 1))) return false;
    }
    return true;
  }

  /** True if the line that begins there is blank, and ends. */
  #isBlank(text, at) {
    while ((text[at] === " " || text[at] === "\t") && this.#step()) at++;
    return text[at] === "\n";
  }

  #step() {
    return this.#left-- > 0;
  }
}

/** Where the line ends, with its end, of which but white space is left; -1 if there is more. */
function lineEnd(text, at) {
  while (text[at] === " " || text[at] === "\t") at++;
  return at >= text.length ? at : text[at] === "\n" ? at + 1 : -1;
}

/** Where a formula may begin in what marked would take for one text; undefined if nowhere. */
export function inlineStart(text) {
  const at = PLAIN.exec(text)[0].length;
  return text[at] === "$" || (text[at] === "\\" && (text[at + 1] === "(" || text[at + 1] === "[")) ? at : undefined;
}
