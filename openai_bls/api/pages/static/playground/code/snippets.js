// A request as text to copy: curl, Python with OpenAI's SDK, and Triton's generate_stream. None of them holds a key.

const VARIABLE = "OPENAI_API_KEY";

/** Port of Triton's own endpoints, by the server; its usual one where the server does not tell. */
const TRITON_PORT = document.querySelector("[name=triton-http-port]")?.content || "8000";

/** Text in single quotes, as a shell takes it. */
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** JSON in lines, as Python writes it. */
function python(value, indent = "") {
  const inner = `${indent}    `;
  const list = (parts, open, close) => (parts.length ? `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}` : open + close);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return list(value.map((part) => python(part, inner)), "[", "]");
  if (typeof value === "object")
    return list(Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${python(part, inner)}`), "{", "}");
  return JSON.stringify(value);
}

function curl(body, root, hasKey) {
  const key = hasKey ? ` \\\n  -H "authorization: Bearer $${VARIABLE}"` : "";
  return `curl -N ${new URL("v1/chat/completions", root)} \\\n  -H 'content-type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(body, null, 2))}\n`;
}

function sdk(body, root, hasKey) {
  const key = hasKey ? `os.environ["${VARIABLE}"]` : '"none"';
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`);
  const text = `from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(String(new URL("v1", root)))}, api_key=${key})
stream = client.chat.completions.create(
${fields.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
  return hasKey ? `import os\n\n${text}` : text;
}

function generateStream(body, root, hasKey) {
  const url = `http://${new URL(root).hostname}:${TRITON_PORT}/v2/models/openai_bls/generate_stream`;
  const request = JSON.stringify({ request: JSON.stringify(body) });
  // The shell puts the key in between two texts in quotes.
  const data = hasKey ? `'{"api_key": "'"$${VARIABLE}"'", '${quoted(request.slice(1))}` : quoted(request);
  return `curl -N ${url} \\\n  -H 'content-type: application/json' \\\n  -d ${data}\n`;
}

/** Name of a form → the request in it. */
export const FORMS = {
  curl: { text: curl, note: "" },
  Python: { text: sdk, note: "Needs the package openai." },
  generate_stream: { text: generateStream, note: `Triton's own endpoint, on its port ${TRITON_PORT}; outside a container it may have another.` },
};
