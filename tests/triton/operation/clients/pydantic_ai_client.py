"""Pydantic AI, agents with typed output: `pydantic_ai_client.py BASE_URL` prints one JSON object of what it found."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

QUESTION = "What is machine learning?"
CAPITAL = "Answer in JSON: what is the capital of France?"
WEATHER = "What's the weather in Paris?"


class Capital(BaseModel):
    """The capital of a country."""

    country: str
    capital: str


def get_weather(city: str) -> dict[str, Any]:
    """Get the weather in a city"""
    return {"city": city, "temperature": 21, "condition": "sunny"}


async def find(base_url: str) -> dict[str, Any]:
    """What Pydantic AI finds: text, a stream, a tool, output through a tool and through a JSON schema."""
    # By its own name, not as openai_bls: what begins with "o" is one of OpenAI's reasoning models to Pydantic AI, to
    # which it sends no temperature.
    model = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=base_url, api_key="none"))
    settings = ModelSettings(temperature=0)
    plain = Agent(model, model_settings=settings)
    found: dict[str, Any] = {"whole": (await plain.run(QUESTION)).output}
    async with plain.run_stream(QUESTION) as stream:
        found["streamed"] = "".join([piece async for piece in stream.stream_text(delta=True)])
    tools = Agent(model, tools=[get_weather], model_settings=settings)
    found["agent"] = (await tools.run(WEATHER)).output
    by_tool = Agent(model, output_type=Capital, model_settings=settings)
    found["by_tool"] = (await by_tool.run(CAPITAL)).output.model_dump()
    by_schema = Agent(model, output_type=NativeOutput(Capital), model_settings=settings)
    found["by_schema"] = (await by_schema.run(CAPITAL)).output.model_dump()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(find(sys.argv[1]))))
