"""LiteLLM: `litellm_client.py BASE_URL` prints one JSON object of what it found."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

# Or it looks for prices on the internet when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel

litellm.suppress_debug_info = True

QUESTION = [{"role": "user", "content": "What is machine learning?"}]
CAPITAL = [{"role": "user", "content": "Answer in JSON: what is the capital of France?"}]
WEATHER = [{"role": "user", "content": "What's the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Capital(BaseModel):
    """What the model answers in."""

    country: str
    capital: str


def find(options: dict[str, Any]) -> dict[str, Any]:
    """What LiteLLM finds."""
    answer = litellm.completion(messages=QUESTION, **options)
    found: dict[str, Any] = {
        "whole": answer.choices[0].message.content,
        "finish_reason": answer.choices[0].finish_reason,
        "completion_tokens": answer.usage.completion_tokens,
    }
    chunks = list(litellm.completion(messages=QUESTION, stream=True, stream_options={"include_usage": True}, **options))
    found["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    found["rebuilt"] = litellm.stream_chunk_builder(chunks, messages=QUESTION).choices[0].message.content
    found["asynchronous"] = asyncio.run(litellm.acompletion(messages=QUESTION, **options)).choices[0].message.content
    for choice in ("auto", "required"):
        message = litellm.completion(messages=WEATHER, tools=[TOOL], tool_choice=choice, **options).choices[0].message
        found[f"tool_{choice}"] = [[call.function.name, call.function.arguments] for call in message.tool_calls]
    calls = list(litellm.completion(messages=WEATHER, tools=[TOOL], stream=True, **options))
    built = litellm.stream_chunk_builder(calls, messages=WEATHER).choices[0].message.tool_calls
    found["tool_streamed"] = [[call.function.name, call.function.arguments] for call in built]
    typed = litellm.completion(messages=CAPITAL, response_format=Capital, **options)
    found["typed"] = json.loads(typed.choices[0].message.content)
    text = litellm.text_completion(prompt="The capital of Germany is", max_tokens=4, **text_options(options))
    found["completion"] = text.choices[0].text
    try:
        litellm.completion(messages=QUESTION, **{**options, "temperature": 9})
    except litellm.BadRequestError as error:
        found["error"] = str(error)
    return found


def text_options(options: dict[str, Any]) -> dict[str, Any]:
    """The same for /v1/completions, which has a provider name of its own."""
    return {**options, "model": "text-completion-openai/openai_bls"}


if __name__ == "__main__":
    print(
        json.dumps(find({"model": "openai/openai_bls", "api_base": sys.argv[1], "api_key": "none", "temperature": 0}))
    )
