// Reading aloud: the words of one answer at a time, piece by piece; the next is spoken by the server while one is heard.

import { Problem } from "../problems.js";
import { sentenceOf, spoken } from "./requests.js";
import { piecesOf } from "./spoken.js";

/** Bytes of a WAV file without a sample, which no browser plays: a text may have no sound. */
const EMPTY_FILE = 44;

export class Reader {
  #models;
  #settings;
  #onChange;
  #onFault;
  #message = null;
  #controller = null;
  /** Made by a press: browsers let no page make a sound before one. */
  #output = null;

  /** @param options `models`, `settings`; `onChange(message)`: it is read now, null is none; `onFault(sentence)` */
  constructor({ models, settings, onChange, onFault }) {
    [this.#models, this.#settings, this.#onChange, this.#onFault] = [models, settings, onChange, onFault];
  }

  /** Reads an answer, instead of another one; stops if it is being read. */
  toggle(message) {
    const stops = message === this.#message;
    this.#controller?.abort();
    if (!stops) this.#read(message);
  }

  async #read(message) {
    const controller = new AbortController();
    this.#controller = controller;
    this.#change(message);
    try {
      this.#output ??= new AudioContext();
      this.#output.resume();
      await this.#play(piecesOf(message.content), controller.signal);
    } catch (error) {
      if (error instanceof Problem) this.#onFault(sentenceOf(error));
      else if (error.name !== "AbortError") throw error;
    } finally {
      // Another answer may be read already.
      if (controller === this.#controller) {
        this.#change(null);
        this.#output?.suspend();
      }
    }
  }

  #change(message) {
    this.#message = message;
    this.#onChange(message);
  }

  async #play(texts, signal) {
    if (!texts.length) throw new Problem("This answer has no words to read aloud.", "");
    let next = this.#sound(texts[0], signal);
    for (const text of [...texts.slice(1), null]) {
      const sound = await next;
      next = text && this.#sound(text, signal);
      // It fails when its turn comes.
      next?.catch(() => {});
      if (sound) await this.#heard(sound, signal);
    }
  }

  /** What the model makes of a text, decoded; null if it has no sound. It has no address, which the page's policy would
   * have to allow. */
  async #sound(text, signal) {
    const data = await spoken(text, { model: this.#models.of("speech"), key: this.#settings.key, signal });
    if (data.byteLength <= EMPTY_FILE) return null;
    try {
      return await this.#output.decodeAudioData(data);
    } catch {
      throw new Problem("The browser cannot play the format in which the model speaks.", "");
    }
  }

  /** Plays a sound to its end.
   * @throws AbortError when `signal` says so */
  #heard(sound, signal) {
    signal.throwIfAborted();
    const source = new AudioBufferSourceNode(this.#output, { buffer: sound });
    source.connect(this.#output.destination);
    return new Promise((resolve, reject) => {
      source.addEventListener("ended", resolve);
      signal.addEventListener("abort", () => {
        source.stop();
        reject(signal.reason);
      });
      source.start();
    });
  }
}
