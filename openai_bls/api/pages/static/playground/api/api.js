// Requests to the API of this server, with the visitor's key.

import { eventBatches } from "./event_stream.js";
import { inlined } from "./pictures.js";
import { Problem, brokenOff, problemOf, unreachable } from "../problems.js";

/** The address under which this page and the API are: "/" or what a proxy puts before it. */
export const ROOT = new URL("./", document.baseURI);

/** A response that is no error.
 * @throws Problem; an AbortError as it is */
export async function request(path, key, options = {}, model = "") {
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...options.headers };
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { cache: "no-store", credentials: "same-origin", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // Header values are Latin-1: a key with other characters is no key.
    throw /headers/i.test(error.message) ? problemOf(401, null, { hasKey: true }) : unreachable();
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const retryAfter = response.headers.get("retry-after") ?? "";
  throw problemOf(response.status, body?.error ?? null, { model, hasKey: Boolean(key), retryAfter });
}

/** The cards of all models, the default first. */
export async function allModels(key) {
  return (await (await request("v1/models", key)).json()).data;
}

/** The text of /metrics. */
export async function metrics(key, signal) {
  return (await request("metrics", key, { signal })).text();
}

/** Chunks of a streamed chat completion, those that come together in one array.
 * @throws Problem; an AbortError when `signal` says so */
export async function* chatChunks(body, key, signal) {
  const options = { method: "POST", body: JSON.stringify(await inlined(body)), signal, headers: { "content-type": "application/json" } };
  const response = await request("v1/chat/completions", key, options, body.model);
  try {
    for await (const batch of eventBatches(response.body)) {
      const end = batch.indexOf("[DONE]");
      const chunks = (end < 0 ? batch : batch.slice(0, end)).map((data) => JSON.parse(data));
      const bad = chunks.findIndex((chunk) => chunk.error);
      yield bad < 0 ? chunks : chunks.slice(0, bad);
      if (bad >= 0) throw problemOf(0, chunks[bad].error, { model: body.model });
      if (end >= 0) return;
    }
  } catch (error) {
    throw error instanceof Problem || error.name === "AbortError" ? error : brokenOff();
  }
  throw brokenOff();
}
