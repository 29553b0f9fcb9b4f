// Dictation: a button that records, and puts what a model hears into the composer for the visitor to send.

import { Problem } from "../problems.js";
import { byId, element } from "../ui/dom.js";
import { recorded } from "./recording.js";
import { sentenceOf, transcribed } from "./requests.js";

/** What the button says, and a screen reader, while something goes on. */
const LABELS = { recording: "Recording", sending: "Transcribing" };
const TITLES = { recording: "Stop, and write what was said (Esc throws it away)", sending: "Esc throws it away" };

/** Seconds of audio that the server takes. */
const MOST_S = Number(document.querySelector("meta[name=max-audio-seconds]").content);
/** A recording ends a little before them: its own clock is not exact. */
const LONGEST_MS = 1000 * Math.max(MOST_S - 2, MOST_S / 2);

const clock = (ms) => `${Math.floor(ms / 60_000)}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}`;

export class Dictation {
  #models;
  #settings;
  #composer;
  #state = "idle";
  #model = "";
  #controller = null;
  #stop = null;
  #button = byId("microphone");
  #label = byId("microphone-label");
  #time = byId("microphone-time");
  #fault = byId("microphone-fault");

  /** @param options `models`, `settings`, `composer` */
  constructor({ models, settings, composer }) {
    [this.#models, this.#settings, this.#composer] = [models, settings, composer];
    this.#button.addEventListener("click", () => this.#press());
  }

  /** Shows the button where a model hears, and until the recording that there is has ended. */
  refresh() {
    this.#button.hidden = this.#state === "idle" && !this.#models.of("transcription");
  }

  /** Throws away the recording; false if there is none. */
  drop() {
    this.#controller?.abort();
    return this.#state !== "idle";
  }

  #press() {
    if (this.#state === "idle") this.#write();
    else if (this.#state === "opening") this.drop();
    else this.#stop?.();
  }

  /** Records, unless there is a recording already, and writes what was said in it. */
  async #write(recording = null) {
    this.#controller = new AbortController();
    this.#model = this.#models.of("transcription") ?? this.#model;
    const { signal } = this.#controller;
    this.#say("");
    try {
      recording ??= await this.#recorded(signal);
      this.#show("sending");
      const text = (await transcribed(recording, { model: this.#model, key: this.#settings.key, signal })).trim();
      if (text) this.#composer.insert(text);
      else this.#say("No words were heard.");
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      // What was said is not lost to a busy server, or to a key that is missing.
      const mayPass = recording && (error.canRetry || error.field);
      this.#say(sentenceOf(error), mayPass ? () => this.#write(recording) : null);
    } finally {
      this.#controller = null;
      this.#show("idle");
      this.refresh();
    }
  }

  async #recorded(signal) {
    this.#show("opening");
    let timers = [];
    try {
      return await recorded(signal, (stop) => {
        const began = performance.now();
        const tick = () => (this.#time.textContent = clock(performance.now() - began));
        this.#stop = stop;
        this.#show("recording");
        tick();
        timers = [setInterval(tick, 1000), setTimeout(() => this.#stopAtBound(), LONGEST_MS)];
      });
    } finally {
      timers.forEach(clearTimeout);
      this.#time.textContent = "";
      this.#stop = null;
    }
  }

  #stopAtBound() {
    this.#say(`The server takes ${clock(1000 * MOST_S)} of audio at most: the recording has ended there.`);
    this.#stop();
  }

  #show(state) {
    this.#state = state;
    this.#label.textContent = LABELS[state] ?? "Dictate";
    this.#button.title = TITLES[state] ?? "Speak the message";
    this.#button.setAttribute("aria-pressed", String(state === "opening" || state === "recording"));
    this.#button.setAttribute("aria-busy", String(state === "sending"));
    byId("status").textContent = LABELS[state] ?? "";
  }

  /** Shows a sentence, with a button if `again` tries once more. */
  #say(text, again = null) {
    // The button goes with its press, and the focus would with it.
    const press = () => (this.#button.focus(), again());
    const button = again && element("button", { type: "button", className: "button small", textContent: "Try again", onclick: press });
    this.#fault.replaceChildren(text, ...(button ? [" ", button] : []));
    this.#fault.hidden = !text;
  }
}
