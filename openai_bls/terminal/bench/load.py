"""Load on a server: streamed chat completions, a fixed number at a time or at a fixed rate, each of them timed."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from openai_bls.terminal.connection import Connection, refusal, unreachable


class Level(NamedTuple):
    """One load: `concurrency` requests at a time (closed loop), or `rate` arrivals per second (open loop)."""

    requests: int
    concurrency: int = 0
    rate: float = 0.0

    @property
    def name(self) -> str:
        """For a table."""
        return f"{self.rate:g}/s" if self.rate else str(self.concurrency)


@dataclass
class Sample:
    """Request, and what came of it."""

    first_s: float = 0.0
    """Seconds to the first token; in an open loop from when the request was due."""
    total_s: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    """Generated, as the server counts them; of one that does not, the chunks with text."""
    error: str = ""
    """Empty for a whole answer."""

    @property
    def itl_s(self) -> float | None:
        """Seconds per token after the first."""
        return (self.total_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass
class Measured:
    """Samples of a level, and how long it took."""

    level: Level
    samples: list[Sample]
    duration_s: float


class Load:
    """Sends the requests of one level after the other.

    Args:
        server: server that gets the requests.
        body: body of each request, without its prompt.
        prompt: makes a prompt.
        seed: seed of the arrivals in an open loop.
    """

    def __init__(self, server: Connection, body: dict[str, Any], prompt: Callable[[], str], seed: int = 0) -> None:
        self._server = server
        self._body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        self._prompt = prompt
        self._random = random.Random(seed)

    async def run(self, level: Level) -> Measured:
        """Send a level's requests and wait for all of them."""
        prompts = [self._prompt() for _ in range(level.requests)]
        # No limit on connections of its own: what waits for one would count as the server's time.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=self._server.timeout, verify=self._server.tls) as client:
            start = time.monotonic()
            if level.rate:
                samples = await self._open(client, prompts, level.rate)
            else:
                samples = await self._closed(client, prompts, level.concurrency)
            return Measured(level, samples, time.monotonic() - start)

    async def _closed(self, client: httpx.AsyncClient, prompts: list[str], concurrency: int) -> list[Sample]:
        samples: list[Sample] = []
        left = iter(prompts)

        async def worker() -> None:
            for prompt in left:
                samples.append(await self._send(client, prompt, time.monotonic()))

        await asyncio.gather(*(worker() for _ in range(min(concurrency, len(prompts)))))
        return samples

    async def _open(self, client: httpx.AsyncClient, prompts: list[str], rate: float) -> list[Sample]:
        due = time.monotonic()

        async def arrival(prompt: str, at: float) -> Sample:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            return await self._send(client, prompt, at)

        sent = []
        for prompt in prompts:
            sent.append(arrival(prompt, due))
            # Arrivals of many independent users are a Poisson process.
            due += self._random.expovariate(rate)
        return list(await asyncio.gather(*sent))

    async def _send(self, client: httpx.AsyncClient, prompt: str, start: float) -> Sample:
        sample = Sample()
        body = {**self._body, "messages": [{"role": "user", "content": prompt}]}
        try:
            async with client.stream(
                "POST", f"{self._server.url}/chat/completions", json=body, headers=self._server.headers
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    sample.error = refusal(self._server, answer.status_code, _parsed(answer.text))
                else:
                    await _read(answer, sample, start)
        except httpx.HTTPError as error:
            sample.error = unreachable(self._server.url, error)
        sample.total_s = time.monotonic() - start
        sample.first_s = sample.first_s or sample.total_s
        return sample


async def _read(answer: httpx.Response, sample: Sample, start: float) -> None:
    """Read a stream's events into `sample`."""
    chunks, counted = 0, None
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            sample.tokens = chunks if counted is None else counted
            if not sample.tokens:
                sample.error = "an answer without tokens"
            return
        event = _parsed(data)
        if not isinstance(event, dict) or event.get("error"):
            error = event.get("error") if isinstance(event, dict) else None
            said = error.get("message") if isinstance(error, dict) else error
            sample.error = f"an error within the answer: {said or data[:80]}"
            return
        usage = event.get("usage")
        if usage:
            counted, sample.prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens") or 0
        if any(_has_token(choice.get("delta") or {}) for choice in event.get("choices") or ()):
            chunks += 1
            if chunks == 1:
                sample.first_s = time.monotonic() - start
    sample.error = "an answer that broke off"


def _has_token(delta: dict[str, Any]) -> bool:
    return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
