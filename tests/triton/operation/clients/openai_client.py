"""The `openai` SDK 2.x (.venv has 3.x): `openai_client.py BASE_URL` prints one JSON object of what it found."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from pydantic import BaseModel, Field

MODEL = "openai_bls"
QUESTION: Any = [{"role": "user", "content": "What is machine learning?"}]
CAPITAL: Any = [{"role": "user", "content": "Answer in JSON: what is the capital of France?"}]
WEATHER: Any = [{"role": "user", "content": "What's the weather in Paris?"}]


class Capital(BaseModel):
    """What the model answers in."""

    country: str
    capital: str


class GetWeather(BaseModel):
    """Get the weather in a city"""

    city: str = Field(description="The city")


def find(client: openai.OpenAI) -> dict[str, Any]:
    """What the synchronous client finds."""
    found: dict[str, Any] = {"version": openai.__version__, "models": [model.id for model in client.models.list()]}
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    found["whole"] = answer.choices[0].message.content
    chunks = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True)
    found["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        found["helper_deltas"] = "".join(event.delta for event in stream if event.type == "content.delta")
        found["helper_final"] = stream.get_final_completion().choices[0].message.content
    parsed = client.chat.completions.parse(model=MODEL, messages=CAPITAL, temperature=0, response_format=Capital)
    found["parsed"] = (parsed.choices[0].message.parsed or Capital(country="", capital="")).model_dump()
    # The SDK for Python has no run_tools; this is what its JavaScript sister's does.
    tool: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
    call = client.chat.completions.parse(model=MODEL, messages=WEATHER, temperature=0, tools=[tool])
    (tool_call,) = call.choices[0].message.tool_calls or []
    arguments: Any = tool_call.function.parsed_arguments
    found["tool"] = {"name": tool_call.function.name, "arguments": arguments.model_dump()}
    messages = [
        *WEATHER,
        call.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": tool_call.id, "content": '{"temperature": 21, "condition": "sunny"}'},
    ]
    last = client.chat.completions.parse(model=MODEL, messages=messages, temperature=0, tools=[tool])
    found["after_tool"] = last.choices[0].message.content
    completion = client.completions.create(model=MODEL, prompt="The capital of Germany is", temperature=0, max_tokens=4)
    found["completion"] = completion.choices[0].text
    try:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9)
    except openai.BadRequestError as error:
        found["error"] = {"param": error.param, "type": error.type, "status": error.status_code}
    return found


async def find_async(base_url: str) -> tuple[str | None, str]:
    """The answers of the asynchronous client, whole and streamed, at the same time."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:

        async def whole() -> str | None:
            answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
            return answer.choices[0].message.content

        async def streamed() -> str:
            stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        return await asyncio.gather(whole(), streamed())


if __name__ == "__main__":
    with openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0) as sdk:
        print(json.dumps({**find(sdk), "asynchronous": asyncio.run(find_async(sys.argv[1]))}))
