// Conversations of this browser: kept in its database, shared by its tabs. Nothing that one tab keeps overwrites
// what another has kept since.

import { Database } from "./database.js";

const CHANNEL = "openai_bls.conversations";
/** How long a deleted conversation can be had back by a page that still offers it. */
const PURGE_AFTER_MS = 10 * 60 * 1000;
const TITLE_LENGTH = 80;

/** A new id; `randomUUID` is for HTTPS alone. */
export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** The title of a conversation that was given none: how its first question begins. */
export function titleOf(messages) {
  const question = messages.find(({ role }) => role === "user");
  const line = question?.content.trim().split("\n", 1)[0] ?? "";
  if (line.length > TITLE_LENGTH) return `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…`;
  return line || (question?.pictures?.length ? "A picture" : "Without a question");
}

/** Left out of what is kept: large, and of use to the last answers alone. */
const PASSING = new Set(["tokens", "request"]);
const plain = (messages) => JSON.parse(JSON.stringify(messages, (name, value) => (PASSING.has(name) || value instanceof Blob ? undefined : value)));
const picturesOf = (messages) => messages.flatMap(({ pictures = [] }) => pictures);

export class ConversationStore extends EventTarget {
  #database = new Database();
  #channel = new BroadcastChannel(CHANNEL);

  constructor() {
    super();
    this.#channel.addEventListener("message", ({ data }) => this.#tell(data.ids, true));
    this.#purge().catch(() => {});
  }

  /** True if the browser keeps nothing. Known once something was asked for. */
  get isMemory() {
    return this.#database.isMemory;
  }

  #tell(ids, isElsewhere) {
    this.dispatchEvent(new CustomEvent("change", { detail: { ids, isElsewhere } }));
  }

  #changed(...ids) {
    this.#channel.postMessage({ ids });
    this.#tell(ids, false);
  }

  /** Heads (id, title, created, updated, count), the latest first. */
  async list() {
    const heads = await this.#database.read(["heads"], (store) => store.all());
    return heads.filter((head) => !head.deleted).sort((a, b) => b.updated - a.updated);
  }

  /** A conversation with its messages and their pictures; null if there is none. */
  async load(id) {
    const found = await this.#database.read(["heads", "contents", "pictures"], async (heads, contents, pictures) => {
      const [head, content] = [await heads.get(id), await contents.get(id)];
      return head && content && !head.deleted ? { ...head, ...content, blobs: await pictures.of(id) } : null;
    });
    if (!found) return null;
    const blobs = new Map(found.blobs.map((picture) => [picture.id, picture.blob]));
    for (const message of found.messages) {
      if (message.pictures) message.pictures = message.pictures.map((one) => ({ ...one, blob: blobs.get(one.id) })).filter(({ blob }) => blob);
    }
    return found;
  }

  /** Keeps the messages of a conversation.
   * @param revision what was loaded or kept last; where another tab has kept more since, this becomes a conversation
   * of its own
   * @returns { id, revision } under which it is kept */
  async save({ id, revision, messages, model = "", title = "", created = Date.now(), updated = Date.now() }) {
    const kept = await this.#database.write(["heads", "contents", "pictures"], async (heads, contents, pictures) => {
      const [head, before, held] = [await heads.get(id), await contents.get(id), new Set(await pictures.keysOf(id))];
      const isOther = (before?.revision ?? 0) !== revision;
      const key = isOther ? newId() : id;
      if (isOther) for (const picture of picturesOf(messages)) picture.id = newId();
      const named = !isOther && head?.named;
      const isCopy = isOther || head?.isCopy === true;
      await heads.put({
        ...(!isOther && head),
        id: key,
        title: named ? head.title : title || titleOf(messages) + (isCopy ? " (of another tab)" : ""),
        isCopy,
        named: named || Boolean(title),
        created: (!isOther && head?.created) || created,
        updated,
        count: messages.length,
        deleted: 0,
        model,
      });
      await contents.put({ id: key, revision: isOther ? 1 : revision + 1, messages: plain(messages) });
      const wanted = picturesOf(messages);
      for (const { id: picture, blob } of wanted) if (isOther || !held.has(picture)) await pictures.put({ id: picture, conversation: key, blob });
      if (!isOther) for (const picture of held) if (!wanted.some((one) => one.id === picture)) await pictures.delete(picture);
      return { id: key, revision: isOther ? 1 : revision + 1 };
    });
    this.#changed(kept.id);
    return kept;
  }

  /** Adds a conversation that comes from elsewhere. */
  async add({ messages, ...rest }) {
    for (const picture of picturesOf(messages)) picture.id = newId();
    await this.save({ ...rest, id: newId(), revision: 0, messages });
  }

  async #patch(ids, change) {
    await this.#database.write(["heads"], async (heads) => {
      for (const id of ids) {
        const head = await heads.get(id);
        if (head) await heads.put({ ...head, ...change });
      }
    });
    this.#changed(...ids);
  }

  /** Gives a conversation a title; an empty one is that of its first question again. */
  async rename(id, title) {
    const content = title ? null : await this.#database.read(["contents"], (contents) => contents.get(id));
    await this.#patch([id], { title: title.slice(0, 200) || titleOf(content?.messages ?? []), named: Boolean(title) });
  }

  /** Takes conversations out of the list; `restore` brings them back. */
  remove(ids) {
    return this.#patch(ids, { deleted: Date.now() });
  }

  restore(ids) {
    return this.#patch(ids, { deleted: 0 });
  }

  /** Forgets what was deleted a while ago. */
  async #purge() {
    await this.#database.write(["heads", "contents", "pictures"], async (heads, contents, pictures) => {
      for (const { id, deleted } of await heads.all()) {
        if (!deleted || Date.now() - deleted < PURGE_AFTER_MS) continue;
        await heads.delete(id);
        await contents.delete(id);
        for (const picture of await pictures.keysOf(id)) await pictures.delete(picture);
      }
    });
  }

  /** Messages of every conversation that is listed, one after the other: [id, messages]. */
  async *everything() {
    const ids = await this.#database.read(["contents"], (contents) => contents.keys());
    for (const id of ids) {
      const content = await this.#database.read(["contents"], (contents) => contents.get(id));
      if (content) yield [id, content.messages];
    }
  }
}
