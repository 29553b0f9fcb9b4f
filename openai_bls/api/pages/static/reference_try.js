// Trial of an endpoint on the reference page: a request that can be changed, sent to this server, and what it answers.

import { ofThisTab } from "./playground/ui/storage.js";

/** Characters of an answer that are shown. */
const MOST = 200_000;

function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

const labelled = (text, field) => element("label", {}, text, field);

/** The text of a body as it comes; the connection is closed behind what is shown. */
async function showBody(body, panel) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    panel.textContent += decoder.decode(piece.value, { stream: true });
    if (panel.textContent.length > MOST) {
      panel.textContent = `${panel.textContent.slice(0, MOST)}\n… and more`;
      return reader.cancel();
    }
  }
}

/** JSON in lines; another text as it is. */
function inLines(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function send({ method, path, body, key }, status, panel, signal) {
  status.textContent = "Waiting…";
  panel.textContent = "";
  try {
    const headers = { ...(body !== null && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
    const response = await fetch(new URL(`.${path}`, document.baseURI), { method, headers, signal, cache: "no-store", ...(body !== null && { body }) });
    status.textContent = `${response.status} ${response.statusText}`.trim();
    if (response.body) await showBody(response.body, panel);
    panel.textContent = inLines(panel.textContent);
  } catch (error) {
    status.textContent = error.name === "AbortError" ? "Stopped." : "The server does not answer.";
  }
}

/** A form for the request of a figure.
 * @param figure has `method`, `path` and `body` in its data, and `keys` where requests need one */
export function tryForm({ dataset }) {
  const path = element("input", { value: dataset.path, spellcheck: false });
  const body = "body" in dataset ? element("textarea", { value: dataset.body, rows: Math.min(16, dataset.body.split("\n").length + 1), spellcheck: false }) : null;
  const key = "keys" in dataset ? element("input", { type: "password", value: ofThisTab.get("key") ?? "", autocomplete: "off" }) : null;
  const [status, panel] = [element("p", { className: "soft", role: "status" }), element("pre", { tabIndex: 0, ariaLabel: "Answer" })];
  const submit = element("button", { type: "submit", textContent: "Send" });
  const form = element("form", { className: "try" }, labelled(dataset.method, path), ...(key ? [labelled("API key", key)] : []), ...(body ? [labelled("Body", body)] : []), submit, status, panel);
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return running.abort();
    if (key) ofThisTab.set("key", key.value.trim());
    running = new AbortController();
    submit.textContent = "Stop";
    await send({ method: dataset.method, path: path.value, body: body && body.value, key: key?.value.trim() }, status, panel, running.signal);
    running = null;
    submit.textContent = "Send";
  });
  return form;
}
