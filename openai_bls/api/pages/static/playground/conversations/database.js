// Database of the browser: IndexedDB with promises; where it is blocked, memory that lasts until the page is left.

const NAME = "openai_bls";
const VERSION = 1;

/** Object store → its key, and the field by which its records can be found. */
const STORES = { heads: "id", contents: "id", pictures: "id" };
const INDEX = "conversation";

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** One object store within a transaction. */
class Store {
  #store;

  constructor(store) {
    this.#store = store;
  }

  get = (key) => done(this.#store.get(key));
  all = () => done(this.#store.getAll());
  keys = () => done(this.#store.getAllKeys());
  put = (record) => done(this.#store.put(record));
  delete = (key) => done(this.#store.delete(key));
  /** Records of `pictures` that belong to a conversation. */
  of = (conversation) => done(this.#store.index(INDEX).getAll(conversation));
  keysOf = (conversation) => done(this.#store.index(INDEX).getAllKeys(conversation));
}

/** The same in memory. */
class MemoryStore {
  #records = new Map();

  get = async (key) => this.#records.get(key);
  all = async () => [...this.#records.values()];
  keys = async () => [...this.#records.keys()];
  put = async (record) => void this.#records.set(record.id, structuredClone(record));
  delete = async (key) => void this.#records.delete(key);
  of = async (conversation) => [...this.#records.values()].filter((record) => record[INDEX] === conversation);
  keysOf = async (conversation) => (await this.of(conversation)).map(({ id }) => id);
}

function opened() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    for (const [name, keyPath] of Object.entries(STORES)) request.result.createObjectStore(name, { keyPath });
    request.transaction.objectStore("pictures").createIndex(INDEX, INDEX);
  };
  return done(request);
}

export class Database {
  #opening = null;
  #memory = null;

  /** True if nothing outlives the page. */
  get isMemory() {
    return this.#memory !== null;
  }

  async #connection() {
    if (!this.#memory) {
      try {
        this.#opening ??= opened();
        const connection = await this.#opening;
        // The browser closes it when the visitor clears the page's data, or another release opens it.
        connection.onclose = () => (this.#opening = null);
        connection.onversionchange = () => {
          connection.close();
          this.#opening = null;
        };
        return connection;
      } catch {
        this.#memory = Object.fromEntries(Object.keys(STORES).map((name) => [name, new MemoryStore()]));
      }
    }
    return null;
  }

  /** Runs `work` with stores in one transaction: all of it is kept, or nothing.
   * @param names of the stores, in the order in which `work` takes them
   * @throws DOMException what the browser refuses, such as a full disk */
  async #run(mode, names, work) {
    const connection = await this.#connection();
    if (!connection) return work(...names.map((name) => this.#memory[name]));
    // The default waits for the disk at each turn of a conversation.
    const transaction = connection.transaction(names, mode, { durability: "relaxed" });
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new DOMException("aborted", "AbortError"));
    });
    ended.catch(() => {});
    let result;
    try {
      result = await work(...names.map((name) => new Store(transaction.objectStore(name))));
    } catch (error) {
      if (transaction.error === null) transaction.abort();
      throw error;
    }
    await ended;
    return result;
  }

  read(names, work) {
    return this.#run("readonly", names, work);
  }

  write(names, work) {
    return this.#run("readwrite", names, work);
  }
}
