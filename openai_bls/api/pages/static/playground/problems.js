// Problems in words: what went wrong with a request, and what its sender can do about it.

/** A request that has failed. `title` and `advice` are for people, `detail` is what the server said. */
export class Problem extends Error {
  constructor(title, advice, { detail = "", status = 0, field = "", canRetry = false } = {}) {
    super(title);
    Object.assign(this, { title, advice, detail, status, field, canRetry });
  }
}

/** The server could not be reached. */
export const unreachable = () =>
  new Problem(
    "The server does not answer.",
    "It may have been stopped, may be restarting, or the network is down. Your message is still here.",
    { canRetry: true },
  );

/** The answer broke off. */
export const brokenOff = () =>
  new Problem("The connection was lost before the answer was complete.", "What has arrived is kept.", { canRetry: true });

/** The page was left before the answer was complete.
 * @param hasBegun whether something of it is kept */
export const cutOff = (hasBegun) =>
  new Problem(
    hasBegun ? "This answer is incomplete." : "This question has no answer.",
    "Another tab may still receive it; if none does, try again.",
    { canRetry: true, status: "" },
  );

/** A JSON field of the settings that cannot be sent. */
export const badSetting = (field, title, advice) => new Problem(title, advice, { field });

/** Seconds of a Retry-After header in words. */
function later(seconds) {
  const count = Number(seconds);
  if (!(count > 0)) return "Try again in a moment.";
  return `Try again in ${count === 1 ? "a second" : `${count} seconds`}.`;
}

/** Codes of errors within a stream → the status that they would have before it. */
const STATUSES = { invalid_api_key: 401, server_overloaded: 503, model_unavailable: 503, guard_unavailable: 503, timeout: 504 };
const TOO_LONG = ["context_length_exceeded", "string_above_max_length"];

/** The problem behind an error of the API.
 * @param given status of the response, or 0 for an error within a stream
 * @param error OpenAI's error body, or null if there was none
 * @param request { model, hasKey, retryAfter } */
export function problemOf(given, error, { model = "", hasKey = false, retryAfter = "" } = {}) {
  const status = given || STATUSES[error?.code] || 500;
  const detail = error?.message ?? "";
  const of = (title, advice, more = {}) => new Problem(title, advice, { detail, status, ...more });
  if (status === 401 && hasKey)
    return of("The server does not accept this key.", "Check that it is complete, or ask whoever runs the server for another.", { field: "key" });
  if (status === 401) return of("This server asks for a key.", "Enter it in the settings; it stays in this tab.", { field: "key" });
  if (status === 403) return of("You may not do that here.", "The server refuses this request.");
  if (error?.code === "model_not_found")
    return of(`The model “${model}” is not served here.`, "It may have been unloaded. Choose another one above.", { field: "model" });
  if (TOO_LONG.includes(error?.code))
    return of("This conversation is too long for the model.", "Begin a new chat, shorten a message, or lower “Max tokens”.");
  if (status === 413) return of("This message is larger than the server takes.", "Shorten it, or send fewer or smaller pictures.");
  if (status === 429) return of("There are too many requests just now.", later(retryAfter), { canRetry: true });
  if (status === 503) return of("The server is busy or not ready yet.", later(retryAfter), { canRetry: true });
  if (status === 504) return of("The model took too long.", later(retryAfter), { canRetry: true });
  if (status >= 400 && status < 500) return of("The server refuses this request.", "Change what it names, then send it again.");
  return of("The server had an error.", "Its log says more. You can try again.", { canRetry: true });
}
