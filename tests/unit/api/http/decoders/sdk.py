"""Events as Python's official SDKs give them, each after the number of its stream: `sdk.py URL BODY URL BODY ...`."""

from __future__ import annotations

import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

OPTIONS: dict[str, Any] = {"api_key": "none", "max_retries": 0}


def started(url: str, body: dict[str, Any]) -> Any:
    """The stream."""
    if url.endswith("/messages"):
        import anthropic

        return anthropic.Anthropic(base_url=url.removesuffix("/v1/messages"), **OPTIONS).messages.create(**body)
    import openai

    client = openai.OpenAI(base_url=url.partition("/v1")[0] + "/v1", **OPTIONS)
    return (client.responses if url.endswith("/responses") else client.chat.completions).create(**body)


def read(number: int, url: str, body: str) -> None:
    """Print what comes."""
    for event in started(url, json.loads(body)):
        sys.stdout.write(f"{number} {event.to_json(indent=None)}\n")


urls, bodies = sys.argv[1::2], sys.argv[2::2]
with ThreadPoolExecutor(len(urls)) as pool:
    list(pool.map(read, itertools.count(), urls, bodies))
