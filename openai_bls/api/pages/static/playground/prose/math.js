// LaTeX of an answer: where it begins and ends in markdown, and how KaTeX draws it. KaTeX is loaded with the first formula.

import { element } from "../ui/dom.js";

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

const BLOCK = /^ {0,3}(?:\$\$((?:[^\n$]|\n(?![ \t]*\n)|\$(?!\$)|\\\$)+?)\$\$|\\\[((?:[^\n]|\n(?![ \t]*\n))+?)\\\])[ \t]*(?:\n|$)/;
const BLOCK_BEGUN = /^ {0,3}(?:\$\$|\\\[)(?:[^\n]|\n(?![ \t]*\n))*$/;
const INLINE = [
  { pattern: /^\$\$((?:\\.|[^$\\\n])+?)\$\$/, display: true },
  { pattern: /^\\\[((?:[^\n]|\n(?![ \t]*\n))+?)\\\]/, display: true },
  { pattern: /^\\\(((?:[^\n]|\n(?![ \t]*\n))+?)\\\)/, display: false },
  // As pandoc has it, so that $5 and $10 stay amounts of money.
  { pattern: /^\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/, display: false },
];

/** Extensions of marked: formulas become `.math` elements with their source, which `draw` takes up.
 * @param escaped text as HTML
 * @param grows whether more text may follow, so that a formula that has begun is one, as a function */
export function mathExtensions(escaped, grows) {
  const renderer = ({ text, display }) => (display ? `<pre class="math">${escaped(text)}</pre>` : `<code class="math">${escaped(text)}</code>`);
  return [
    {
      name: "blockMath",
      level: "block",
      start: (text) => text.match(/\n {0,3}(?:\$\$|\\\[)/)?.index,
      tokenizer(text) {
        const found = BLOCK.exec(text);
        if (found) return { type: "blockMath", raw: found[0], text: (found[1] ?? found[2]).trim(), display: true };
        const begun = grows() ? BLOCK_BEGUN.exec(text) : null;
        return begun ? { type: "blockMath", raw: begun[0], text: begun[0], display: true } : undefined;
      },
      renderer,
    },
    {
      name: "inlineMath",
      level: "inline",
      start: (text) => text.match(/\$|\\[([]/)?.index,
      tokenizer(text) {
        for (const { pattern, display } of INLINE) {
          const found = pattern.exec(text);
          if (found) return { type: "inlineMath", raw: found[0], text: found[1].trim(), display };
        }
        return undefined;
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
 * @throws katex.ParseError */
function elementsOf(katex, text, display) {
  const tree = katex.__renderToDomTree(text, { ...OPTIONS, displayMode: display });
  const walk = (node) => {
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

/** Draws a `.math` element's formula in its place; what KaTeX cannot read stays as it was written. */
export async function drawMath(source) {
  const text = source.textContent;
  if (text.length > LONGEST) return;
  const display = source.localName === "pre" || source.classList.contains("display");
  try {
    const katex = await loaded();
    const drawn = element(source.localName === "pre" ? "div" : "span", { className: display ? "formula display" : "formula", data: { source: text } });
    if (source.localName === "pre") drawn.tabIndex = 0;
    drawn.append(elementsOf(katex, text, display));
    source.replaceWith(drawn);
  } catch (error) {
    source.title = error.message;
  }
}
