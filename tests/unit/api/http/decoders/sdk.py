"""Events as the official SDKs of Python give them: `python sdk.py URL BODY`."""

from __future__ import annotations

import json
import sys
from typing import Any

url, text = sys.argv[1:]
body: dict[str, Any] = json.loads(text)
options: dict[str, Any] = {"api_key": "none", "max_retries": 0}


def started() -> Any:
    """The stream."""
    if url.endswith("/messages"):
        import anthropic

        return anthropic.Anthropic(base_url=url.removesuffix("/v1/messages"), **options).messages.create(**body)
    import openai

    client = openai.OpenAI(base_url=url.partition("/v1")[0] + "/v1", **options)
    return (client.responses if url.endswith("/responses") else client.chat.completions).create(**body)


for event in started():
    print(event.to_json(indent=None), flush=True)  # noqa: T201
