// A conversation as a Markdown file. Comments, which readers of Markdown do not show, mark where a message begins.

const MARK = /^(\\*)<!-- (user|assistant|reasoning|tool call|tool result)(?: ([^\n]*?))? -->$/;
const HEADINGS = { user: "You", assistant: "Answer" };
const PICTURE = /^!\[([^\]\n]*)\]\((data:image\/[a-z]+;base64,[A-Za-z0-9+/=]+)\)$/;

/** A text in which no line looks like a mark. */
const guarded = (text) => text.replace(/^\\*<!-- .*-->$/gm, (line) => (MARK.test(line) ? `\\${line}` : line));
const unguarded = (text) => text.replace(/^\\(\\*<!-- .*-->)$/gm, (line, rest) => (MARK.test(rest) ? rest : line));
const mark = (kind, name = "") => `<!-- ${kind}${name && ` ${name}`} -->`;

/** @param messages with pictures as data: URIs */
export function toMarkdown(title, messages) {
  const parts = [`# ${title.replaceAll("\n", " ")}`];
  for (const { role, content, reasoning, toolCalls = [], pictures = [] } of messages) {
    parts.push(mark(role), `## ${HEADINGS[role]}`);
    for (const { name, data } of pictures) parts.push(`![${name.replace(/[[\]\n]/g, " ")}](${data})`);
    if (content) parts.push(guarded(content));
    if (reasoning) parts.push(mark("reasoning"), guarded(reasoning));
    for (const call of toolCalls) {
      parts.push(mark("tool call", encodeURIComponent(call.name)), guarded(call.arguments));
      if (call.result !== undefined) parts.push(mark("tool result"), guarded(call.result));
    }
  }
  return `${parts.join("\n\n")}\n`;
}

/** The conversation of a file that `toMarkdown` wrote.
 * @throws Error with a sentence for people: nothing marks a message */
export function fromMarkdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const title = /^# (.*)$/.exec(lines[0])?.[1] ?? "";
  const messages = [];
  let part = null;
  const parts = [];
  for (const line of lines) {
    const found = MARK.exec(line);
    if (found && !found[1]) parts.push((part = { kind: found[2], name: found[3] ?? "", lines: [] }));
    else part?.lines.push(line);
  }
  if (!parts.some(({ kind }) => kind in HEADINGS)) throw new Error("This Markdown was not written by this page: nothing in it marks where a message begins.");
  for (const { kind, name, lines: own } of parts) {
    const last = messages.at(-1);
    if (kind in HEADINGS) messages.push(message(kind, own));
    else if (last?.role !== "assistant") continue;
    else if (kind === "reasoning") last.reasoning = textOf(own);
    else if (kind === "tool call") last.toolCalls.push({ id: `call_${messages.length}_${last.toolCalls.length}`, name: decoded(name), arguments: textOf(own) });
    else if (last.toolCalls.length) last.toolCalls.at(-1).result = textOf(own);
  }
  return { title, messages };
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** Between parts there is an empty line; a text's own empty lines stay. */
const textOf = (lines) => unguarded(lines.slice(1, lines.at(-1) === "" ? -1 : undefined).join("\n"));

function message(role, lines) {
  // The heading, then each picture, with an empty line after each.
  const pictures = [];
  let rest = lines[1] === `## ${HEADINGS[role]}` ? lines.slice(2) : lines;
  for (let found; (found = PICTURE.exec(rest[1] ?? "")); rest = rest.slice(2)) pictures.push({ name: found[1], data: found[2] });
  const content = textOf(rest);
  return role === "user" ? { role, content, ...(pictures.length && { pictures }) } : { role, content, reasoning: "", toolCalls: [] };
}
