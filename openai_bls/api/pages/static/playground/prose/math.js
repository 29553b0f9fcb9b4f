// LaTeX of an answer: its place in markdown, and how KaTeX draws it. KaTeX is loaded with the first formula.

import { element } from "../ui/dom.js";
import { inlineStart } from "./formulas.js";

const VENDOR = new URL("../../vendor/katex/", import.meta.url);

const OPTIONS = {
  throwOnError: true,
  // An answer is not trusted: no links, no pictures, no attributes, and nothing that grows without end.
  trust: false,
  strict: "ignore",
  maxExpand: 1000,
  maxSize: 40,
};

/** The longest formula that is drawn. */
const LONGEST = 5000;

/** Elements of the largest formula that is drawn: an array has some twenty for each of its characters. */
const MOST_ELEMENTS = 5000;

/** What defines macros, each of which may stand for more than all that is written: a formula of 5,000 characters with
 * one takes minutes. It stays as it was written. */
const DEFINITION = /\\(?:[gex]?def|let|futurelet|newcommand|renewcommand|providecommand)(?![A-Za-z@])/;

/** Extensions of marked: formulas become `.math` elements with their source, which `draw` takes up.
 * @param escaped text as HTML
 * @param formulas finds the formulas of the text that is read
 * @param grows whether more text may follow, so that a formula that has begun is one, as a function */
export function mathExtensions(escaped, formulas, grows) {
  const renderer = ({ text, display }) => (display ? `<pre class="math">${escaped(text)}</pre>` : `<code class="math">${escaped(text)}</code>`);
  return [
    {
      name: "blockMath",
      level: "block",
      start: (text) => formulas.blockStart(text),
      tokenizer(text) {
        const found = formulas.block(text, grows());
        return found ? { type: "blockMath", ...found, display: true } : undefined;
      },
      renderer,
    },
    {
      name: "inlineMath",
      level: "inline",
      start: inlineStart,
      tokenizer(text) {
        const found = formulas.inline(text);
        return found ? { type: "inlineMath", ...found } : undefined;
      },
      // A paragraph holds no blocks.
      renderer: ({ text, display }) => `<code class="math${display ? " display" : ""}">${escaped(text)}</code>`,
    },
  ];
}

let loading = null;

/** KaTeX, its styles and its fonts. */
function loaded() {
  loading ??= (async () => {
    const styles = element("link", { rel: "stylesheet", href: new URL("katex.min.css", VENDOR).href });
    const ready = new Promise((resolve, reject) => {
      styles.addEventListener("load", resolve);
      styles.addEventListener("error", reject);
    });
    document.head.append(styles);
    await Promise.all([ready, import(new URL("katex.min.js", VENDOR))]);
    return globalThis.katex;
  })();
  // After a connection that broke, the next formula tries again.
  loading.catch(() => (loading = null));
  return loading;
}

/** A formula as elements. KaTeX's own `render` sets style attributes, which the page's policy forbids: here they are
 * set as properties.
 * @throws katex.ParseError
 * @throws RangeError it has too many */
function elementsOf(katex, text, display) {
  const tree = katex.__renderToDomTree(text, { ...OPTIONS, displayMode: display });
  let count = 0;
  const walk = (node) => {
    if (++count > MOST_ELEMENTS) throw new RangeError("Formulas of so many parts are not drawn.");
    if (node.attributes?.style) {
      node.attributes["data-style"] = node.attributes.style;
      delete node.attributes.style;
    }
    node.children?.forEach(walk);
  };
  walk(tree);
  const drawn = tree.toNode();
  for (const node of drawn.querySelectorAll("[data-style]")) {
    node.style.cssText = node.dataset.style;
    delete node.dataset.style;
  }
  return drawn;
}

/** Milliseconds of formulas that are drawn without a pause; the longest takes a few times as long by itself. */
const SLICE = 50;

/** Milliseconds since the last pause. */
let spent = 0;

/** Lets the page do something else, if formulas have kept it from that for long enough. */
async function pause() {
  if (spent < SLICE) return;
  await new Promise((resolve) => setTimeout(resolve));
  spent = 0;
}

/** Draws a `.math` element's formula in its place; what KaTeX cannot read stays as it was written. */
export async function drawMath(source) {
  const text = source.textContent;
  if (text.length > LONGEST) return;
  if (DEFINITION.test(text)) {
    source.title = "Formulas that define macros are not drawn.";
    return;
  }
  const display = source.localName === "pre" || source.classList.contains("display");
  try {
    const katex = await loaded();
    await pause();
    const began = performance.now();
    const drawn = element(source.localName === "pre" ? "div" : "span", { className: display ? "formula display" : "formula", data: { source: text } });
    if (source.localName === "pre") drawn.tabIndex = 0;
    drawn.append(elementsOf(katex, text, display));
    spent += performance.now() - began;
    source.replaceWith(drawn);
  } catch (error) {
    source.title = error.message;
  }
}
