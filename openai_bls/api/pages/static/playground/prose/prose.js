// Prose of one answer: markdown that grows while it streams in. Blocks that can no longer change are made once.

import { element } from "../ui/dom.js";
import { blocksOf, elementsOf, MOST_ELEMENTS, within } from "./blocks.js";
import { fragmentOf } from "./markdown.js";

/** From so many blocks on, those out of sight are not laid out. */
const MANY = 40;

/** Elements of the last block, which is made again with each piece; a longer one is shown as it is written until its end. */
const MOST_OF_THE_LAST = 1000;

export class Prose {
  node = element("div", { className: "prose" });
  /** Settled blocks, in the groups in which they were made: what tells them from others, and their nodes. */
  #groups = [];
  /** Nodes of the last block, which may change. */
  #tail = [];
  /** Length of the settled text, and its elements. */
  #length = 0;
  #elements = 0;
  #text = "";
  #links = {};
  /** Once the unsettled text took too long, or made too many elements: the length at which its markdown is tried again.
   * Until then it is shown as it is written. */
  #plainUntil = 0;

  /** Shows `text`, of which more may follow. */
  grow(text) {
    const whole = withoutReturns(text);
    if (!whole.startsWith(this.#text)) this.#reset();
    const added = whole.slice(this.#text.length);
    this.#text = whole;
    const rest = whole.slice(this.#length);
    if (rest.length < this.#plainUntil) {
      this.#tail[0].append(added);
      return;
    }
    const options = { mayGrow: true, links: this.#links, elements: MOST_ELEMENTS - this.#elements };
    const blocks = blocksOf(rest, options);
    // Tried once more for each doubling: work grows as the text does, and one pause of the machine is made up for.
    this.#plainUntil = blocks.length === 1 && blocks[0].type === "plain" ? 2 * rest.length : 0;
    const last = blocks.findLastIndex(({ type }) => type !== "space");
    this.#dropTail();
    Object.assign(this.#links, blocks.links);
    this.#settle(blocks.slice(0, Math.max(last, 0)));
    this.#tail = this.#append(within(blocks.slice(Math.max(last, 0)), MOST_OF_THE_LAST), { plain: true });
  }

  /** Shows the whole of `text`: as if it had come at once. */
  finish(text) {
    const whole = withoutReturns(text);
    const blocks = blocksOf(whole);
    this.#plainUntil = 0;
    this.#dropTail();
    this.#text = whole;
    // What a definition says of a link may stand after the link.
    this.#settle(blocks.slice(this.#cut(Object.keys(blocks.links).length ? [] : blocks.map(key))));
  }

  /** Takes out the groups from the first on that is not in `keys`; returns how many blocks are left. */
  #cut(keys) {
    let kept = 0;
    const wrong = this.#groups.findIndex((group) => {
      const same = group.keys.every((one, index) => one === keys[kept + index]);
      if (same) kept += group.keys.length;
      return !same;
    });
    if (wrong >= 0) for (const { nodes } of this.#groups.splice(wrong)) for (const node of nodes) node.remove();
    this.#length = this.#groups.reduce((sum, { length }) => sum + length, 0);
    this.#elements = this.#groups.reduce((sum, { elements }) => sum + elements, 0);
    return kept;
  }

  #reset() {
    this.#links = {};
    this.#plainUntil = 0;
    this.#dropTail();
    this.#cut([]);
  }

  #settle(blocks) {
    if (!blocks.length) return;
    const length = blocks.reduce((sum, { raw }) => sum + raw.length, 0);
    const elements = blocks.reduce((sum, block) => sum + elementsOf(block), 0);
    this.#groups.push({ keys: blocks.map(key), length, elements, nodes: this.#append(blocks) });
    this.#length += length;
    this.#elements += elements;
  }

  #append(blocks, options) {
    const fragment = fragmentOf(blocks, options);
    const nodes = [...fragment.childNodes];
    this.node.classList.toggle("many", this.node.childElementCount + nodes.length > MANY);
    this.node.append(fragment);
    return nodes;
  }

  #dropTail() {
    for (const node of this.#tail) node.remove();
    this.#tail = [];
  }
}

/** What tells a block from another; whether the items of a list are paragraphs depends on those that follow. */
const key = ({ type, raw, loose }) => (type === "plain" || loose ? `${type} ${raw}` : raw);

/** Lines end as marked has them. */
const withoutReturns = (text) => text.replace(/\r\n?/g, "\n");
