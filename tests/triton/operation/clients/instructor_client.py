"""Instructor, typed output in its several ways: `instructor_client.py BASE_URL` prints one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

import instructor
import openai
from pydantic import BaseModel

CAPITAL: Any = [{"role": "user", "content": "Answer in JSON: what is the capital of France?"}]


class Capital(BaseModel):
    """The capital of a country."""

    country: str
    capital: str


def find(base_url: str) -> dict[str, Any]:
    """What Instructor finds, mode by mode: forced tool calls, a JSON schema, and the same while it comes in."""
    sdk = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    found: dict[str, Any] = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(sdk, mode=mode)
        options: dict[str, Any] = {"model": "openai_bls", "messages": CAPITAL, "temperature": 0, "max_retries": 0}
        typed = client.chat.completions.create(response_model=Capital, **options)
        partial = list(client.chat.completions.create_partial(response_model=Capital, **options))
        found[mode.value] = {"typed": typed.model_dump(), "partial": partial[-1].model_dump()}
    return found


if __name__ == "__main__":
    print(json.dumps(find(sys.argv[1])))
