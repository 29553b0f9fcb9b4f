// Node 18 or later, without packages. With the package openai: new OpenAI({baseURL: "http://localhost:9000/v1", apiKey: "none"}).
const response = await fetch("http://localhost:9000/v1/chat/completions", {
  method: "POST",
  headers: {"content-type": "application/json"},
  body: JSON.stringify({
    model: "openai_bls",
    messages: [{role: "user", content: "What is the capital of France?"}],
    temperature: 0,
    stream: true,
  }),
});
if (!response.ok) throw new Error(await response.text());

let rest = "";
for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
  const events = (rest + piece).split("\n\n");
  rest = events.pop();
  for (const event of events) {
    // Comment lines (": keep-alive") break a silence.
    const data = event.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
    if (!data || data === "[DONE]") continue;
    process.stdout.write(JSON.parse(data).choices[0]?.delta.content ?? "");
  }
}
console.log();
