// Events as the official SDKs of JavaScript give them, each after the number of its stream: `node sdk.mjs URL BODY URL BODY ...`,
// with their packages in $NODE_MODULES.
import { createRequire } from "node:module";

const require = createRequire(`${process.env.NODE_MODULES}/x.js`);
const words = process.argv.slice(2);
const options = { apiKey: "none", maxRetries: 0 };

async function started(url, body) {
  if (url.endsWith("/messages")) {
    const { Anthropic } = require("@anthropic-ai/sdk");
    return new Anthropic({ ...options, baseURL: url.replace("/v1/messages", "") }).messages.create(body);
  }
  const { OpenAI } = require("openai");
  const client = new OpenAI({ ...options, baseURL: url.replace(/(\/v1)\/.*/, "$1") });
  if (url.endsWith("/responses")) return client.responses.create(body);
  return client.chat.completions.create(body);
}

async function read(number) {
  const stream = await started(words[2 * number], JSON.parse(words[2 * number + 1]));
  for await (const event of stream) console.log(number, JSON.stringify(event));
}

await Promise.all(Array.from({ length: words.length / 2 }, (_, number) => read(number)));
