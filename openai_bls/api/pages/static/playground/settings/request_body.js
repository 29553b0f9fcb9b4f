// Body of a chat completion: the conversation and the settings in the API's words.

import { badSetting } from "../problems.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "max_tokens", "seed"];
const ESCAPES = { n: "\n", r: "\r", t: "\t", "\\": "\\" };
const TOP_LOGPROBS = 5;

/** The value of a JSON field of the settings; undefined if it is empty.
 * @throws Problem it is no JSON, or not of the kind */
export function settingJson(settings, field, isRight, kind) {
  const text = settings[field]?.trim();
  if (!text) return undefined;
  const what = field === "tools" ? "The tool definitions" : "The JSON schema";
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw badSetting(field, `${what} cannot be read: ${error.message}.`, "Correct the JSON in the settings.");
  }
  if (!isRight(value)) throw badSetting(field, `${what} must be ${kind}.`, "Correct it in the settings.");
  return value;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @throws Problem a setting that cannot be sent */
export function requestBody(model, settings, messages) {
  const body = { ...(model && { model }), messages: [], stream: true, stream_options: { include_usage: true } };
  if (settings.system?.trim()) body.messages.push({ role: "system", content: settings.system });
  body.messages.push(...messages.flatMap(sent));
  for (const name of NUMBERS) {
    const value = Number(settings[name]);
    if (settings[name] && Number.isFinite(value)) body[name] = value;
  }
  const stop = stopStrings(settings.stop ?? "");
  if (stop.length) body.stop = stop;
  if (settings.format === "json_object") body.response_format = { type: "json_object" };
  if (settings.format === "json_schema") {
    const schema = settingJson(settings, "schema", isObject, "an object");
    if (!schema) throw badSetting("schema", "There is no JSON schema.", "Enter one in the settings, or choose another form of answer.");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  const tools = settingJson(settings, "tools", (value) => Array.isArray(value) && value.every(isObject), "an array of objects");
  if (tools?.length) Object.assign(body, { tools, tool_choice: settings.tool_choice || "auto" });
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  return body;
}

/** Stop strings, one on each line, in which \n is a new line, \t a tab and \\ a backslash. */
export const stopStrings = (text) => text.split("\n").filter(Boolean).map((line) => line.replace(/\\([nrt\\])/g, (escape, name) => ESCAPES[name]));

/** The messages of the API behind one of the conversation. */
function sent(message) {
  if (message.role === "user") return [{ role: "user", content: message.pictures?.length ? partsOf(message) : message.content }];
  if (!message.toolCalls?.length) return message.content ? [{ role: "assistant", content: message.content }] : [];
  const calls = message.toolCalls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  const results = message.toolCalls.filter((call) => call.result !== undefined);
  return [
    { role: "assistant", content: message.content || null, tool_calls: calls },
    ...results.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result })),
  ];
}

/** Pictures stand before what is asked of them. A picture is a blob until it is sent. */
const partsOf = ({ content, pictures }) => [
  ...pictures.map(({ blob }) => ({ type: "image_url", image_url: { url: blob } })),
  ...(content.trim() ? [{ type: "text", text: content }] : []),
];

export const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather in a given location",
      parameters: {
        type: "object",
        properties: {
          location: { type: "string", description: "The city and state, e.g. San Francisco, CA" },
          unit: { type: "string", enum: ["celsius", "fahrenheit"] },
        },
        required: ["location"],
      },
    },
  },
];

export const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { country: { type: "string" }, capital: { type: "string" } },
  required: ["country", "capital"],
  additionalProperties: false,
};
