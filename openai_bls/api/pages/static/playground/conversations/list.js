// List of the conversations: the latest first, searched, renamed, deleted with undo, written to files and read from them.

import { byId, element, symbolButton } from "../ui/dom.js";
import { chosenFiles, download } from "../ui/files.js";
import { groupOf, inFull } from "./dates.js";
import { search } from "./search.js";
import { asMarkdown, fromFile, toJson } from "./transfer.js";

const TYPING_MS = 150;
/** Characters of the largest file that is read in. */
const LARGEST_FILE = 256 * 1024 * 1024;

const many = (number) => (number === 1 ? "1 conversation" : `${number} conversations`);

export class ConversationList {
  #store;
  #toast;
  #current;
  #runs;
  #onRemoved;
  #list = byId("conversation-list");
  #field = byId("search");
  #heads = [];
  #searching = null;
  #timer = 0;
  #renaming = "";
  #removed = [];

  /** @param options `store`, `toast`; `current()`: id of the conversation that is shown; `runs(id)`: true while an answer
   * streams into it; `onRemoved(ids)` */
  constructor({ store, toast, current, runs, onRemoved }) {
    [this.#store, this.#toast, this.#current, this.#runs, this.#onRemoved] = [store, toast, current, runs, onRemoved];
    store.addEventListener("change", () => this.refresh());
    this.#field.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#show(), TYPING_MS);
    });
    byId("import").addEventListener("click", async () => this.importFiles(await chosenFiles(".json,.md,.markdown,application/json,text/markdown")));
    byId("export-all").addEventListener("click", () => this.#exportAll());
    byId("delete-all").addEventListener("click", () => this.remove(this.#heads.map(({ id }) => id)));
    this.#makeMenu();
    this.refresh();
  }

  /** Asks the store anew. */
  async refresh() {
    this.#heads = await this.#store.list();
    byId("not-kept").hidden = !this.#store.isMemory;
    await this.#show();
  }

  /** Shows which conversation is open, and which have an answer that streams in. */
  async mark() {
    for (const item of this.#items()) this.#markOne(item);
  }

  #items() {
    return [...this.#list.querySelectorAll("[data-id]")];
  }

  #markOne(item) {
    const { id } = item.dataset;
    const link = item.querySelector("a");
    if (id === this.#current()) link?.setAttribute("aria-current", "page");
    else link?.removeAttribute("aria-current");
    item.classList.toggle("runs", this.#runs(id));
  }

  async #show() {
    this.#searching?.abort();
    this.#searching = new AbortController();
    const { signal } = this.#searching;
    const query = this.#field.value.trim();
    const found = query ? await search(this.#store, this.#heads, query, signal) : null;
    if (signal.aborted || this.#renaming) return;
    const shown = this.#heads.filter(({ id }) => !found || found.has(id));
    const groups = Map.groupBy(shown, ({ updated }) => groupOf(updated));
    const nodes = [...groups].flatMap(([name, heads]) => [element("li", { className: "group note", textContent: name }), ...heads.map((head) => this.#item(head, found?.get(head.id) ?? ""))]);
    this.#list.replaceChildren(...nodes);
    const empty = byId("conversations-empty");
    empty.hidden = shown.length > 0;
    empty.textContent = query ? "Nothing is found." : "Conversations will be listed here. They are kept in this browser.";
    for (const name of ["export-all", "delete-all"]) byId(name).hidden = !this.#heads.length;
  }

  #item(head, excerpt) {
    const link = element("a", { href: `#chat=${head.id}`, title: `${head.title}\n${inFull(head.updated)}`, dir: "auto" }, element("span", { className: "title", textContent: head.title }));
    if (excerpt) link.append(element("span", { className: "excerpt note", textContent: excerpt }));
    const more = symbolButton("more", `More for “${head.title}”`, () => this.#openMenu(head, more));
    more.setAttribute("aria-haspopup", "true");
    const item = element("li", { data: { id: head.id } }, link, more);
    item.addEventListener("keydown", (event) => {
      if (event.key === "F2") this.rename(head);
      else if (event.key === "Delete" && event.target === link) this.remove([head.id]);
      else return;
      event.preventDefault();
    });
    this.#markOne(item);
    return item;
  }

  #makeMenu() {
    const menu = byId("conversation-menu");
    const choices = {
      Rename: (head) => this.rename(head),
      "Save as Markdown": async (head) => download(head.title, "md", await asMarkdown(await this.#store.load(head.id)), "text/markdown"),
      "Save as JSON": async (head) => download(head.title, "json", await toJson([await this.#store.load(head.id)]), "application/json"),
      Delete: (head) => this.remove([head.id]),
    };
    for (const [name, choose] of Object.entries(choices)) {
      const onclick = () => {
        menu.hidePopover();
        choose(menu.head);
      };
      menu.append(element("button", { type: "button", textContent: name, onclick }));
    }
    menu.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const buttons = [...menu.children];
      buttons.at((buttons.indexOf(document.activeElement) + step) % buttons.length).focus();
    });
  }

  #openMenu(head, button) {
    const menu = byId("conversation-menu");
    menu.head = head;
    menu.showPopover();
    const place = button.getBoundingClientRect();
    menu.style.left = `${Math.max(8, Math.min(place.left, innerWidth - menu.offsetWidth - 8))}px`;
    menu.style.top = `${Math.max(8, Math.min(place.bottom + 4, innerHeight - menu.offsetHeight - 8))}px`;
    menu.firstElementChild.focus();
  }

  /** Opens a conversation's title for editing. */
  rename({ id, title }) {
    const item = this.#items().find((node) => node.dataset.id === id);
    if (!item) return;
    this.#renaming = id;
    const field = element("input", { className: "input", value: title, maxLength: 200, "aria-label": "Title" });
    const end = async (keeps) => {
      if (this.#renaming !== id) return;
      this.#renaming = "";
      if (keeps && field.value.trim() !== title) await this.#store.rename(id, field.value.trim());
      await this.refresh();
      this.#items().find((node) => node.dataset.id === id)?.querySelector("a").focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    item.replaceChildren(field);
    field.select();
  }

  /** Deletes conversations, and offers to undo it. */
  async remove(ids) {
    if (!ids.length) return;
    const [first] = ids;
    const title = this.#heads.find(({ id }) => id === first)?.title ?? "";
    await this.#store.remove(ids);
    this.#onRemoved(ids);
    this.#removed = ids;
    this.#toast.show(ids.length === 1 ? `“${title}” is deleted.` : `${many(ids.length)} are deleted.`, () => this.undoRemove());
  }

  /** Brings back what was deleted last. */
  async undoRemove() {
    await this.#store.restore(this.#removed);
    if (this.#removed.length === 1) location.hash = `#chat=${this.#removed[0]}`;
    this.#removed = [];
  }

  async #exportAll() {
    const loaded = await Promise.all(this.#heads.map(({ id }) => this.#store.load(id)));
    download("conversations", "json", await toJson(loaded.filter(Boolean)), "application/json");
  }

  /** Adds the conversations of files; those that are here already stay as they are. */
  async importFiles(files) {
    if (!files.length) return;
    const print = (messages) => JSON.stringify(messages.map(({ role, content }) => [role, content]));
    const known = new Set();
    const listed = new Set(this.#heads.map(({ id }) => id));
    for await (const [id, messages] of this.#store.everything()) if (listed.has(id)) known.add(print(messages));
    let [added, same] = [0, 0];
    const faults = [];
    for (const file of files) {
      try {
        if (file.size > LARGEST_FILE) throw new Error(`“${file.name}” is larger than 256 MB.`);
        const found = fromFile(file.name, await file.text());
        if (!found.length) throw new Error(`“${file.name}” holds no message that can be read.`);
        for (const one of found) {
          if (known.has(print(one.messages))) {
            same += 1;
            continue;
          }
          known.add(print(one.messages));
          await this.#store.add(one);
          added += 1;
        }
      } catch (error) {
        faults.push(error.message);
      }
    }
    const told = [added ? `${many(added)} added.` : "", same ? `${many(same)} ${same === 1 ? "was" : "were"} here already.` : "", ...faults];
    this.#toast.show(told.filter(Boolean).join(" "));
  }
}
