// Requests to the API of this server, with the visitor's key.

import { eventData } from "./event_stream.js";
import { Problem, brokenOff, problemOf, unreachable } from "./problems.js";

/** The address under which this page and the API are: "/" or what a proxy puts before it. */
export const ROOT = new URL("./", document.baseURI);

/** A response that is no error.
 * @throws Problem; an AbortError as it is */
async function request(path, key, options = {}, model = "") {
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

/** Models that chat, the default first. */
export async function chatModels(key) {
  const response = await request("v1/models", key);
  const { data } = await response.json();
  return data.filter((model) => !model.task || model.task === "generate" || model.task === "chat");
}

/** The text of /metrics. */
export async function metrics(key, signal) {
  return (await request("metrics", key, { signal })).text();
}

/** Chunks of a streamed chat completion.
 * @throws Problem; an AbortError when `signal` says so */
export async function* chatChunks(body, key, signal) {
  const options = { method: "POST", body: JSON.stringify(body), signal, headers: { "content-type": "application/json" } };
  const response = await request("v1/chat/completions", key, options, body.model);
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw problemOf(0, chunk.error, { model: body.model });
      yield chunk;
    }
  } catch (error) {
    throw error instanceof Problem || error.name === "AbortError" ? error : brokenOff();
  }
  throw brokenOff();
}
