// Requests to the models that hear and speak.

import { request } from "../api/api.js";
import { brokenOff } from "../problems.js";

/** The body of a response as JSON (`json`) or bytes (`arrayBuffer`).
 * @throws Problem it broke off; an AbortError as it is */
async function whole(response, kind) {
  try {
    return await response[kind]();
  } catch (error) {
    throw error.name === "AbortError" ? error : brokenOff();
  }
}

/** The words of a recording.
 * @param options { model, key, signal } */
export async function transcribed(recording, { model, key, signal }) {
  const body = new FormData();
  body.append("model", model);
  // The server tells the format by the first bytes.
  body.append("file", recording, "recording");
  const response = await request("v1/audio/transcriptions", key, { method: "POST", body, signal }, model);
  return (await whole(response, "json")).text;
}

/** A text as the bytes of an audio file, in the model's own format.
 * @param options { model, key, signal } */
export async function spoken(input, { model, key, signal }) {
  const options = { method: "POST", body: JSON.stringify({ model, input }), signal, headers: { "content-type": "application/json" } };
  return whole(await request("v1/audio/speech", key, options, model), "arrayBuffer");
}

/** A problem as one sentence: the server's own where the title only says that it refuses. */
export const sentenceOf = ({ title, detail, field, canRetry }) => (detail && !field && !canRetry ? detail : title);
