// Reader of server-sent events: the body of a response → the data of each event.

export async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) {
        // Lines that begin with a colon keep the connection open and say nothing.
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
