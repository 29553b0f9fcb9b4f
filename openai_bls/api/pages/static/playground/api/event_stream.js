// Reader of server-sent events: the body of a response → the data of its events, those that come together in one array.

export async function* eventBatches(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      const batch = [];
      for (const event of events) {
        // Lines that begin with a colon keep the connection open and say nothing.
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) batch.push(lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n"));
      }
      if (batch.length) yield batch;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
