// Tokens of an answer, each coloured by its probability; the likeliest alternatives show beside the one in focus.

import { element } from "../ui/dom.js";

/** Lower bounds of the levels, from sure to surprised. */
const LEVELS = [0.9, 0.6, 0.3, 0.1, 0];

const level = (probability) => LEVELS.findIndex((bound) => probability >= bound);
const percent = (probability) => `${(probability * 100).toFixed(probability < 0.1 ? 1 : 0)}%`;
const dotted = (spaces) => "·".repeat(spaces.length);
const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ +/, dotted).replace(/(?<! ) +$/, dotted) || "∅";

/** Tokens as pieces of text: those that share a character are one piece. */
export function pieces(tokens) {
  const found = [];
  let bytes = [];
  let shared = [];
  for (const token of tokens) {
    shared.push(token);
    if (!token.bytes) {
      found.push({ text: token.token, tokens: shared });
      shared = [];
      continue;
    }
    bytes.push(...token.bytes);
    try {
      found.push({ text: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes)), tokens: shared });
    } catch {
      continue; // the character goes on in the next token
    }
    bytes = [];
    shared = [];
  }
  if (shared.length) found.push({ text: new TextDecoder().decode(new Uint8Array(bytes)), tokens: shared });
  return found;
}

/** The tokens as one element: the arrow keys go from one to the next. */
export function tokenView(tokens) {
  const card = element("div", { className: "token-card", role: "status" });
  const spans = pieces(tokens).map(({ text, tokens: shared }, index) => {
    const probability = Math.exp(shared.reduce((sum, token) => sum + token.logprob, 0));
    const span = element("span", { className: "token", tabIndex: index ? -1 : 0, textContent: text, data: { level: level(probability) } });
    const show = () => {
      card.replaceChildren(...shared.map(alternatives));
      spans.forEach((other) => other.classList.toggle("shown", other === span));
    };
    span.addEventListener("pointerenter", show);
    span.addEventListener("focus", show);
    return span;
  });
  const text = element("div", { className: "tokens", role: "group", "aria-label": "Tokens; the arrow keys go from one to the next" }, ...spans);
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step && spans[spans.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  card.append(element("p", { className: "note", textContent: "Point at a token to see what else the model considered." }));
  return element("div", { className: "token-view" }, text, card, legend());
}

/** A token with its alternatives, the likeliest first. */
function alternatives(token) {
  const listed = token.top_logprobs ?? [];
  const rows = listed.some((other) => other.token === token.token) ? listed : [...listed, token];
  return element(
    "ol",
    { className: "alternatives" },
    ...rows.map((row) => {
      const probability = Math.exp(row.logprob);
      const bar = element("meter", { min: 0, max: 1, value: probability, "aria-hidden": "true" });
      const chosen = row.token === token.token;
      return element(
        "li",
        chosen ? { className: "chosen", "aria-label": `${row.token}, ${percent(probability)}, chosen` } : {},
        element("code", { textContent: visible(row.token) }),
        bar,
        element("span", { textContent: percent(probability) }),
      );
    }),
  );
}

function legend() {
  const names = ["over 90%", "60%", "30%", "10%", "below"];
  const keys = names.map((name, index) => element("span", { className: "token", textContent: name, data: { level: index } }));
  return element("p", { className: "legend note" }, "How likely each token was: ", ...keys);
}
