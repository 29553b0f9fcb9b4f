"""OpenAI's SDK for Python: pip install openai."""

from openai import OpenAI

client = OpenAI(base_url="http://localhost:9000/v1", api_key="none")
stream = client.chat.completions.create(
    model="openai_bls",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
