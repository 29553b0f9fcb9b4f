// Colours of code: highlight.js in a worker, which starts with the first block of a language and ends when one takes too long.

import "../../vendor/dompurify/purify.min.js";

/** Longer blocks stay plain: their elements would hold the page up. */
const LONGEST = 60_000;
/** Coloured pieces of a block; one with more stays plain. */
const MOST_PIECES = 10_000;
/** Milliseconds that the worker has for a block. */
const MOST = 1000;
const ALLOWED = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };

const url = new URL("colour_worker.js", import.meta.url).href;
// The page's policy takes no address of a script but those of a policy that it names.
const policy = globalThis.trustedTypes?.createPolicy("workers", { createScriptURL: () => url });

/** The worker, once it has loaded what it needs; null before the first block, and after one that took too long. */
let starting = null;

/** Blocks take turns: each has its time for itself. */
let turn = Promise.resolve();

const answer = (worker) =>
  new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = reject;
  });

async function started() {
  const worker = new Worker(policy ? policy.createScriptURL("") : url, { type: "module" });
  await answer(worker);
  return worker;
}

/** HTML of a text's colours; null if its language is not known, or it takes too long. */
async function coloured(text, language) {
  starting ??= started();
  // After a connection that broke, the next block tries again.
  starting.catch(() => (starting = null));
  const worker = await starting;
  const timer = setTimeout(() => {
    worker.terminate();
    starting = null;
    worker.onmessage({ data: null });
  }, MOST);
  worker.postMessage({ text, language });
  try {
    return await answer(worker);
  } finally {
    clearTimeout(timer);
  }
}

/** The language that a block of code names; empty if it names none. */
export const languageOf = (code) => /(?:^| )language-(\S+)/.exec(code.className)?.[1].toLowerCase() ?? "";

/** Colours a `code` element, if its language is known. */
export async function colourCode(code) {
  const language = languageOf(code);
  const text = code.textContent;
  if (!language || text.length > LONGEST) return;
  const work = turn.then(() => coloured(text, language));
  turn = work.catch(() => null);
  const value = await turn;
  if (value && value.split("<span").length <= MOST_PIECES) code.replaceChildren(DOMPurify.sanitize(value, ALLOWED));
}
