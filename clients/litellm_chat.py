"""LiteLLM: pip install litellm. The prefix openai/ names the protocol."""

from litellm import completion

stream = completion(
    model="openai/openai_bls",
    api_base="http://localhost:9000/v1",
    api_key="none",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
