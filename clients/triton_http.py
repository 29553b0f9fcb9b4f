"""Triton's HTTP endpoint generate_stream, with Python alone; the fields are those of chat completions."""

import json
from urllib.request import Request, urlopen

body = {
    "messages": json.dumps([{"role": "user", "content": "What is the capital of France?"}]),
    "temperature": 0,
    "stream": True,
}
url = "http://localhost:8000/v2/models/openai_bls/generate_stream"
with urlopen(Request(url, json.dumps(body).encode())) as events:
    for line in events:
        if line.startswith(b"data: "):
            chunk = json.loads(json.loads(line.removeprefix(b"data: "))["response"])
            print(chunk["choices"][0]["delta"].get("content") or "", end="", flush=True)
print()
