"""LangChain: `langchain_client.py BASE_URL` prints one JSON object of what it found."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["LANGSMITH_TRACING"] = "false"

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = "What is machine learning?"
CAPITAL = "Answer in JSON: what is the capital of France?"
WEATHER = "What's the weather in Paris?"


class Capital(BaseModel):
    """The capital of a country."""

    country: str
    capital: str


@tool  # type: ignore[untyped-decorator]  # its types are in .venv-clients
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return json.dumps({"city": city, "temperature": 21, "condition": "sunny"})


def find(base_url: str) -> dict[str, Any]:
    """What LangChain finds."""
    model = ChatOpenAI(model="openai_bls", base_url=base_url, api_key="none", temperature=0, max_retries=0)
    found: dict[str, Any] = {"whole": model.invoke(QUESTION).text}
    found["streamed"] = "".join(chunk.text for chunk in model.stream(QUESTION))
    found["usage"] = model.invoke(QUESTION).usage_metadata
    found["batch"] = [answer.text for answer in model.batch([QUESTION, "What is 2+2?"])]
    for method in ("json_schema", "function_calling"):
        found[method] = model.with_structured_output(Capital, method=method).invoke(CAPITAL).model_dump()
    found["json_mode"] = model.with_structured_output(None, method="json_mode").invoke(CAPITAL)
    forced = model.bind_tools([get_weather], tool_choice="any").invoke(WEATHER)
    found["forced"] = [{"name": call["name"], "args": call["args"]} for call in forced.tool_calls]
    pieces = list(model.bind_tools([get_weather]).stream(WEATHER))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    found["streamed_call"] = [{"name": call["name"], "args": call["args"]} for call in whole.tool_calls]
    found["agent"] = run_agent(create_agent(model, tools=[get_weather]))
    found["logprobs"] = len(model.bind(logprobs=True).invoke(QUESTION).response_metadata["logprobs"]["content"])
    return found


def run_agent(agent: Any) -> list[dict[str, Any]]:
    """The turns of an agent that calls a tool and tells its result."""
    state = agent.invoke({"messages": [{"role": "user", "content": WEATHER}]})
    return [{"type": message.type, "text": message.text} for message in state["messages"]]


if __name__ == "__main__":
    print(json.dumps(find(sys.argv[1])))
