// Events as the official SDKs of JavaScript give them: `node sdk.mjs URL BODY`, with their packages in $NODE_MODULES.
import { createRequire } from "node:module";

const require = createRequire(`${process.env.NODE_MODULES}/x.js`);
const [url, text] = process.argv.slice(2);
const body = JSON.parse(text);
const options = { apiKey: "none", maxRetries: 0 };

async function started() {
  if (url.endsWith("/messages")) {
    const { Anthropic } = require("@anthropic-ai/sdk");
    return new Anthropic({ ...options, baseURL: url.replace("/v1/messages", "") }).messages.create(body);
  }
  const { OpenAI } = require("openai");
  const client = new OpenAI({ ...options, baseURL: url.replace(/(\/v1)\/.*/, "$1") });
  if (url.endsWith("/responses")) return client.responses.create(body);
  return client.chat.completions.create(body);
}

for await (const event of await started()) console.log(JSON.stringify(event));
