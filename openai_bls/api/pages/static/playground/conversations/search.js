// Search in titles and texts of conversations.

/** Characters of a text around what was found. */
const AROUND = 40;

/** Text without what does not matter to a search: case and accents. Its length may differ from the text's. */
const folded = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();

/** A piece of the text around the first place where `wanted` is; empty if it is nowhere. */
function excerpt(text, wanted) {
  const at = folded(text).indexOf(wanted);
  if (at < 0) return "";
  const start = Math.max(0, at - AROUND);
  return (start ? "…" : "") + text.slice(start, at + wanted.length + AROUND).replace(/\s+/g, " ").trim();
}

/** Conversations in which all words of a query are found: id → an excerpt of a message, empty where the title has them.
 * @param signal gives up: the query has changed */
export async function search(store, heads, query, signal) {
  const words = folded(query).split(/\s+/).filter(Boolean);
  const titles = new Map(heads.map(({ id, title }) => [id, folded(title)]));
  const found = new Map();
  for (const [id, title] of titles) if (words.every((word) => title.includes(word))) found.set(id, "");
  for await (const [id, messages] of store.everything()) {
    if (signal.aborted) break;
    if (found.has(id) || !titles.has(id)) continue;
    const text = `${titles.get(id)}\n${messages.map(({ content, reasoning }) => folded(`${content}\n${reasoning ?? ""}`)).join("\n")}`;
    if (!words.every((word) => text.includes(word))) continue;
    const excerpts = messages.map(({ content }) => excerpt(content, words[0]));
    found.set(id, excerpts.find(Boolean) ?? "");
  }
  return found;
}
