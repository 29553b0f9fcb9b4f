"""Comparison of the models that answer text, on generate_stream: `python -m benchmarks.text_models`.

One server with the null engine: `ensemble`, `tensorrt_llm_bls` and `openai_bls` (completions) are asked in turns, round
after round, for the same streams. Prints tokens/s, CPU µs per token and process, and the memory of each process.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from benchmarks.contenders.servers import prepare
from benchmarks.machine import conditions
from benchmarks.options import positive
from benchmarks.processes import cpu_used, sample_cpu, sample_memory
from openai_bls.launcher.testing import RunningServer, run_server

_ROOT = Path(__file__).resolve().parent.parent
_PROMPT = "the quick brown fox jumps over the lazy dog " * 6
_REQUESTS_PER_STREAM = 4


def _bodies(tokens: int) -> dict[str, dict[str, Any]]:
    """The request of each model, which asks for exactly `tokens` tokens."""
    text = {"text_input": _PROMPT, "max_tokens": tokens, "end_id": -1, "stream": True}
    completion = {"prompt": _PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return {"ensemble": text, "tensorrt_llm_bls": text, "openai_bls": completion}


@dataclass
class Cell:
    """Measurements of one model, one for each round."""

    tokens_per_s: list[float] = field(default_factory=list)
    tokens_per_event: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    """CPU µs per token, by process."""

    def row(self, name: str) -> str:
        """A line of the table, of medians."""
        by_process = {process: statistics.median(values) for process, values in self.cpu_us.items()}
        used = ", ".join(f"{process} {value:.1f}" for process, value in by_process.items() if value >= 0.1)
        rate, joined, first = map(statistics.median, (self.tokens_per_s, self.tokens_per_event, self.first_ms))
        return f"| {name} | {rate:,.0f} | {joined:.2f} | {first:.1f} | {sum(by_process.values()):.1f} | {used} |"


def _text(event: Mapping[str, Any]) -> str:
    if "error" in event:
        raise RuntimeError(event["error"])
    if "text_output" in event:
        text: str = event["text_output"]
        return text
    choices = msgspec.json.decode(event["response"])["choices"]
    return "".join(choice["text"] for choice in choices)


async def _stream(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> tuple[str, int, float]:
    """The text of a stream, its events, and the seconds to the first."""
    started = time.monotonic()
    first = 0.0
    raw = b""
    async with client.stream("POST", url, json=body) as response:
        async for piece in response.aiter_raw():
            first = first or time.monotonic() - started
            raw += piece
    events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line.startswith(b"data: ")]
    return "".join(_text(msgspec.json.decode(event)) for event in events), len(events), first


async def _measure(server: RunningServer, model: str, body: Mapping[str, Any], streams: int, cell: Cell) -> None:
    url = f"{server.http_url}/v2/models/{model}/generate_stream"
    tokens = body["max_tokens"]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:

        async def one() -> list[tuple[str, int, float]]:
            return [await _stream(client, url, body) for _ in range(_REQUESTS_PER_STREAM)]

        before, started = sample_cpu(server.pid), time.monotonic()
        found = [each for some in await asyncio.gather(*(one() for _ in range(streams))) for each in some]
        seconds, used = time.monotonic() - started, cpu_used(before, sample_cpu(server.pid))
    # Each token is a space and a word.
    if any(text.count(" ") != tokens for text, _, _ in found):
        raise RuntimeError(f"{model}: a stream is not whole")
    total = tokens * len(found)
    cell.tokens_per_s.append(total / seconds)
    cell.tokens_per_event.append(total / sum(events for _, events, _ in found))
    cell.first_ms.append(1000 * statistics.median(first for _, _, first in found))
    for process, cpu_s in used.items():
        cell.cpu_us.setdefault(process, []).append(1e6 * cpu_s / total)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text_models", description=__doc__)
    parser.add_argument("--streams", type=positive, default=64)
    parser.add_argument("--tokens", type=positive, default=128)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--step-delay-ms", type=float, default=5.0)
    options = parser.parse_args()
    bodies = _bodies(options.tokens)
    cells = {model: Cell() for model in bodies}
    with tempfile.TemporaryDirectory() as scratch:
        setup = prepare(_ROOT / "model_repository", Path(scratch))
        env = {"OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": f"{options.step_delay_ms:g}"}
        with run_server(setup.repository, env) as server:
            for model, body in bodies.items():
                asyncio.run(_measure(server, model, body, options.streams, Cell()))
            for _ in range(options.rounds):
                for model, body in bodies.items():
                    asyncio.run(_measure(server, model, body, options.streams, cells[model]))
            memory = sample_memory(server.pid)
    print(
        conditions("").date, f"{options.streams} streams, {options.tokens} tokens, {options.step_delay_ms:g} ms steps"
    )
    print("| model | tokens/s | tokens per event | first event, ms | CPU µs per token | by process |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for model, cell in cells.items():
        print(cell.row(model))
    print(
        ", ".join(f"{process} {used.pss_mb:.0f} ({used.rss_mb:.0f})" for process, used in memory.items()),
        "PSS (RSS) MB",
    )


if __name__ == "__main__":
    main()
