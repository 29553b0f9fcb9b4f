// Conversations as files: JSON, which has all of a conversation, and Markdown, which people read. Both can be read in.

import { dataUri } from "../api/pictures.js";
import { fromMarkdown, toMarkdown } from "./markdown_file.js";

const FORMAT = "openai_bls.conversations";
const VERSION = 1;
const PICTURE = /^data:(image\/(?:png|jpeg|webp|gif));base64,([A-Za-z0-9+/]+={0,2})$/;

/** Numbers of an answer's stats; null where they are not known. */
const STATS = ["firstMs", "tokensPerSecond", "promptTokens", "cachedTokens", "completionTokens"];

const isText = (value) => typeof value === "string";
const isTextOrNone = (value) => value === undefined || value === null || isText(value);

/** True for a message that can be shown: another release may have kept it, or a hand changed it. */
function isMessage(message) {
  const { role, content, reasoning, toolCalls = [], pictures = [] } = message ?? {};
  return (
    (role === "user" || role === "assistant") &&
    isText(content) &&
    isTextOrNone(reasoning) &&
    Array.isArray(toolCalls) &&
    toolCalls.every((call) => isText(call?.name) && isText(call.arguments) && isTextOrNone(call.result)) &&
    Array.isArray(pictures)
  );
}

const hasStats = ({ stats }) => Boolean(stats) && STATS.every((name) => stats[name] === null || typeof stats[name] === "number");

/** What of a list are messages, of which nothing else is taken over. */
export function readMessages(found) {
  if (!Array.isArray(found)) return [];
  return found.filter(isMessage).map((message) => ({
    role: message.role,
    content: message.content,
    ...(message.role === "assistant" && {
      reasoning: message.reasoning ?? "",
      toolCalls: (message.toolCalls ?? []).map(({ id, name, arguments: text, result }) => ({ id: isText(id) ? id : "", name, arguments: text, ...(isText(result) && { result }) })),
      stats: hasStats(message) ? message.stats : null,
      json: message.json === true,
      ...(message.isIncomplete === true && { isIncomplete: true }),
    }),
    ...(message.pictures?.length && { pictures: message.pictures.map(readPicture).filter(Boolean) }),
  }));
}

function readPicture(picture) {
  const found = PICTURE.exec(isText(picture?.data) ? picture.data : "");
  if (!found) return null;
  try {
    const bytes = Uint8Array.from(atob(found[2]), (character) => character.charCodeAt(0));
    return { id: "", name: isText(picture.name) ? picture.name : "", type: found[1], size: bytes.length, blob: new Blob([bytes], { type: found[1] }) };
  } catch {
    return null; // no base64 after all
  }
}

/** Messages with their pictures as data: URIs. */
async function written(messages) {
  const one = async ({ tokens, request, pictures, ...message }) =>
    pictures?.length ? { ...message, pictures: await Promise.all(pictures.map(async ({ name, blob }) => ({ name, data: await dataUri(blob) }))) } : message;
  return Promise.all(messages.map(one));
}

/** Conversations, as the store loads them, as JSON text. */
export async function toJson(conversations) {
  const list = [];
  for (const { id, title, named, created, updated, model, messages } of conversations) {
    const times = { created: new Date(created).toISOString(), updated: new Date(updated).toISOString() };
    list.push({ id, title, named: Boolean(named), ...times, model: model ?? "", messages: await written(messages) });
  }
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: list }, null, 1);
}

/** One conversation as Markdown. */
export const asMarkdown = async ({ title, messages }) => toMarkdown(title, await written(messages));

const time = (text) => {
  const found = isText(text) ? Date.parse(text) : NaN;
  return Number.isFinite(found) ? found : Date.now();
};

/** Conversations of a file: { title, created, updated, model, messages }.
 * @throws Error with a sentence for people: it is no such file */
export function fromFile(name, text) {
  if (/\.(md|markdown)$/i.test(name)) return [fromMarkdown(text)].map(({ title, messages }) => ({ title, messages: readMessages(messages) })).filter(({ messages }) => messages.length);
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`“${name}” is no JSON: ${error.message}.`);
  }
  if (found?.format !== FORMAT || !Array.isArray(found.conversations)) throw new Error(`“${name}” holds no conversations of this page.`);
  if (found.version > VERSION) throw new Error(`“${name}” was written by a newer release of this page.`);
  return found.conversations
    .map((one) => ({
      title: one?.named === true && isText(one.title) ? one.title.slice(0, 200) : "",
      created: time(one?.created),
      updated: time(one?.updated),
      model: isText(one?.model) ? one.model : "",
      messages: readMessages(one?.messages),
    }))
    .filter(({ messages }) => messages.length);
}
