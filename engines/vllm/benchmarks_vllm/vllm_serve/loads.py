"""Loads that every server gets: streams in a closed loop, JSON, random arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.clients.target import Arrivals, Plan, Target

_KEYS = 40
"""Required strings of the schema: no answer that it allows ends within 128 tokens."""


@dataclass(frozen=True)
class Load:
    """A load, by the name that tables show."""

    name: str
    kind: Literal["streams", "JSON", "arrivals"]
    concurrency: int
    """Streams at a time; of random arrivals the most."""
    requests: int
    """Of a measurement; of random arrivals a number that is not used."""
    rate: float = 0.0
    """Random arrivals: requests per second."""
    seconds: float = 0.0
    """Random arrivals: time over which they come."""
    prompt_tokens: int = 0
    """Tokens of a prompt and of an answer, where they are not those of all other closed loops."""
    output_tokens: int = 0

    def plan(self, target: Target, words: int, words_per_token: float, output_tokens: int, seed: int) -> Plan:
        """The client's work.

        Args:
            target: the server.
            words: of a prompt in a closed loop.
            words_per_token: for prompts of mixed lengths.
            output_tokens: of an answer in a closed loop.
            seed: different prompts for different seeds.
        """
        if self.prompt_tokens:
            words, output_tokens = max(1, round(self.prompt_tokens * words_per_token)), self.output_tokens
        plan = Plan(target, self.concurrency, self.requests, words, output_tokens, seed=seed)
        if self.kind == "JSON":
            return replace(plan, response_format=json_schema())
        if self.kind == "arrivals":
            return replace(plan, arrivals=Arrivals(self.rate, self.seconds, words_per_token))
        return plan


def json_schema() -> dict[str, Any]:
    """A `response_format` whose answers are longer than those that are asked for."""
    properties = {f"field_{i}": {"type": "string"} for i in range(_KEYS)}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "record", "schema": schema, "strict": True}}


def loads(
    concurrency: Sequence[int],
    per_stream: int,
    json_at: int,
    rates: Sequence[float],
    seconds: float,
    cells: Sequence[tuple[int, int, int]] = (),
) -> list[Load]:
    """All loads, the most important first.

    Args:
        concurrency: levels of the closed loop.
        per_stream: requests that each stream makes; a single one makes twice as many.
        json_at: streams of JSON; 0 leaves them out.
        rates: of random arrivals, requests per second; 0 leaves them out.
        seconds: over which these come.
        cells: streams, each with one request of so many tokens in and out.
    """
    found = [
        Load(str(level), "streams", level, level * per_stream * (2 if level == 1 else 1))
        for level in sorted(concurrency, reverse=True)
    ]
    for streams, prompt, output in cells:
        name = f"{streams} of {prompt:,} in, {output:,} out"
        found.append(Load(name, "streams", streams, streams, prompt_tokens=prompt, output_tokens=output))
    if json_at:
        found.append(Load(f"JSON, {json_at}", "JSON", json_at, json_at * per_stream))
    for rate in filter(None, rates):
        # Room for requests of 8 seconds, so that none waits for a connection on a server that keeps up.
        found.append(Load(f"{rate:g} requests/s", "arrivals", max(16, round(8 * rate)), 1, rate, seconds))
    return found
