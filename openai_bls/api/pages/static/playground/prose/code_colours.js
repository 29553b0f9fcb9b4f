// Colours of code: highlight.js, loaded with the first block of a language that it knows.

import "../../vendor/dompurify/purify.min.js";

/** Longer blocks stay plain: colours would hold the page up. */
const LONGEST = 60_000;
const ALLOWED = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };

let loading = null;

function loaded() {
  loading ??= import("../../vendor/highlight/highlight.min.js").then((module) => module.default);
  loading.catch(() => (loading = null));
  return loading;
}

/** The language that a block of code names; empty if it names none. */
export const languageOf = (code) => /(?:^| )language-(\S+)/.exec(code.className)?.[1].toLowerCase() ?? "";

/** Colours a `code` element, if its language is known. */
export async function colourCode(code) {
  const language = languageOf(code);
  const text = code.textContent;
  if (!language || text.length > LONGEST) return;
  try {
    const highlighter = await loaded();
    if (!highlighter.getLanguage(language)) return;
    const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
    code.replaceChildren(DOMPurify.sanitize(value, ALLOWED));
  } catch {
    // It stays plain.
  }
}
