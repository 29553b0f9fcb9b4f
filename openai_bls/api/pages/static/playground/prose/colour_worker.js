// Worker that colours code: what highlight.js takes for a text may grow with the square of its length.

import highlighter from "../../vendor/highlight/highlight.min.js";

self.addEventListener("message", ({ data: { text, language } }) => {
  const isKnown = highlighter.getLanguage(language) !== undefined;
  self.postMessage(isKnown ? highlighter.highlight(text, { language, ignoreIllegals: true }).value : null);
});
self.postMessage("ready");
