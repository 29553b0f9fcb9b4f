// Recording of the microphone, which is asked for when it begins, and let go as soon as it ends, however it ends.

import { Problem } from "../problems.js";

/** Speech needs no more, and a long recording stays small. */
const BITS_PER_SECOND = 32_000;

/** Bytes of a file in which there may be a sound: of nothing, browsers make the head of a file. */
const LEAST_BYTES = 256;

const REFUSED = {
  NotAllowedError: "The browser, or the system, does not let this page use the microphone.",
  NotFoundError: "There is no microphone.",
};

const release = (stream) => stream.getTracks().forEach((track) => track.stop());

/** The microphone's stream.
 * @throws Problem; an AbortError when `signal` says so, also while the browser asks */
function microphone(signal) {
  // Without HTTPS there is none, except on localhost.
  if (!navigator.mediaDevices || !globalThis.MediaRecorder)
    throw new Problem("The browser gives the microphone only to pages over HTTPS, or of this machine.", "");
  const asked = navigator.mediaDevices.getUserMedia({ audio: true });
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => {
      reject(signal.reason);
      asked.then(release, () => {});
    });
    asked.then(resolve, ({ name }) => reject(new Problem(REFUSED[name] ?? "The microphone cannot be opened; another program may be using it.", "")));
  });
}

/** Records until it is stopped, or the microphone ends.
 * @param onBegin gets the function that stops it
 * @returns a Blob
 * @throws Problem; an AbortError when `signal` says so */
export async function recorded(signal, onBegin) {
  const stream = await microphone(signal);
  let sound = null;
  try {
    signal.throwIfAborted();
    sound = await new Promise((resolve, reject) => {
      const pieces = [];
      const recorder = new MediaRecorder(stream, { audioBitsPerSecond: BITS_PER_SECOND });
      recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
      recorder.addEventListener("stop", () => resolve(new Blob(pieces, { type: recorder.mimeType })));
      recorder.addEventListener("error", () => reject(new DOMException("", "EncodingError")));
      signal.addEventListener("abort", () => reject(signal.reason));
      recorder.start();
      onBegin(() => recorder.state !== "inactive" && recorder.stop());
    });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Problem("The browser cannot record this microphone.", "");
  } finally {
    release(stream);
  }
  if (sound.size < LEAST_BYTES) throw new Problem("Nothing was recorded.", "");
  return sound;
}
