"""Conversations that outgrow the GPU's KV cache, behind /v1 over vLLM: `python -m benchmarks_vllm.kv_offload`.

`python -m benchmarks_vllm.kv_offload --vllm-python PYTHON --out OUT` starts the server twice: with vLLM's prefix cache
on the GPU alone, and with host memory behind it (`kv_offloading_size`). Each time the same conversations take turns, so
that between two turns of one all others have theirs. Measured: the share of prompt tokens found in a cache, the time
to the first token, and the time for all. Results are written after each server.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openai

from benchmarks.clients.driver import exit_on_sigterm
from benchmarks.clients.target import prompt_text, words_for
from benchmarks.support.checkpoint_shapes import DEMO, SHAPES
from benchmarks.support.options import positive
from benchmarks.support.random_checkpoint import checkpoint_in, room_for
from benchmarks.support.report import markdown_table
from benchmarks.support.spread import percentile_ms
from benchmarks_vllm.vllm_serve.servers import Setup, StartError, over_vllm

_BLOCK_TOKENS = 16
"""Tokens of a page of vLLM's KV cache."""


@dataclass(frozen=True)
class Talk:
    """What the conversations are like."""

    conversations: int
    turns: int
    at_once: int
    """Requests in flight."""
    words: int
    """Words that each turn adds to a prompt."""
    answer_tokens: int


@dataclass
class Answers:
    """What a run of all conversations brought."""

    name: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were found in a cache."""
    seconds: float = 0.0
    failed: int = 0
    first_token_s: list[float] = field(default_factory=list)
    """Of every turn."""
    later_first_token_s: list[float] = field(default_factory=list)
    """Of every turn but the first of a conversation."""

    @property
    def hits(self) -> float:
        """Share of the prompt tokens found in a cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


async def converse(name: str, base_url: str, talk: Talk) -> Answers:
    """Have all conversations with the server at `base_url`; the same texts are asked each time."""
    found, turn = Answers(name), asyncio.Semaphore(talk.at_once)

    async def conversation(client: openai.AsyncOpenAI, number: int) -> None:
        source, messages = random.Random(number), []
        for at in range(talk.turns):
            messages.append({"role": "user", "content": prompt_text(talk.words, source)})
            async with turn:  # first come, first served: the conversations take turns
                try:
                    text = await ask(client, messages, talk.answer_tokens, found, later=at > 0)
                except openai.APIError as error:
                    print(f"conversation {number}, turn {at}: {error}", file=sys.stderr)
                    found.failed += 1
                    return
            messages.append({"role": "assistant", "content": text})

    begun = time.monotonic()
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=300) as client:
        await asyncio.gather(*(conversation(client, number) for number in range(talk.conversations)))
    found.seconds = time.monotonic() - begun
    return found


async def ask(client: openai.AsyncOpenAI, messages: list[Any], tokens: int, found: Answers, *, later: bool) -> str:
    """One turn, whose measurements are added to `found`; returns the answer's text.

    Raises:
        openai.APIError: the request failed.
    """
    begun, first, parts = time.monotonic(), 0.0, []
    stream = await client.chat.completions.create(
        model="openai_bls",
        messages=messages,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.monotonic() - begun
                parts.append(choice.delta.content)
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            found.prompt_tokens += chunk.usage.prompt_tokens
            found.cached_tokens += (details.cached_tokens or 0) if details is not None else 0
    found.first_token_s.append(first)
    if later:
        found.later_first_token_s.append(first)
    return "".join(parts)


def table(results: list[Answers]) -> str:
    """The results as Markdown."""
    headers = (
        "KV cache",
        "found again",
        "TTFT p50 ms",
        "p99",
        "after the first turn p50",
        "p99",
        "s for all",
        "failed",
    )

    def ms(seconds: list[float], percent: int) -> str:
        return f"{percentile_ms(np.array(seconds), percent):.0f}"

    return markdown_table(
        headers,
        [
            [
                one.name,
                f"{one.hits:.3f} of {one.prompt_tokens:,}",
                *(ms(times, percent) for times in (one.first_token_s, one.later_first_token_s) for percent in (50, 99)),
                f"{one.seconds:.1f}",
                str(one.failed),
            ]
            for one in results
        ],
    )


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks_vllm.kv_offload", description=__doc__.partition("\n")[0])
    made.add_argument("--vllm-python", type=Path, required=True, help="interpreter of an environment with vLLM")
    made.add_argument("--out", type=Path, required=True, help="folder for results and logs")
    made.add_argument("--like", choices=("demo", *SHAPES), default="qwen2.5-7b", help="shape (default %(default)s)")
    made.add_argument("--offload-gib", type=float, default=32.0, help="host memory (default %(default)s)")
    made.add_argument("--cache-tokens", type=positive, default=65536, help="GPU's KV cache (default %(default)s)")
    made.add_argument("--conversations", type=positive, default=40, help="(default %(default)s)")
    made.add_argument("--turns", type=positive, default=8, help="of each (default %(default)s)")
    made.add_argument("--at-once", type=positive, default=16, help="requests in flight (default %(default)s)")
    made.add_argument("--turn-tokens", type=positive, default=800, help="that a turn adds (default %(default)s)")
    made.add_argument("--answer-tokens", type=positive, default=32, help="(default %(default)s)")
    made.add_argument("--engine-args", type=msgspec.json.decode, default={}, metavar="JSON", help="for vLLM")
    made.add_argument("--start-limit-s", type=float, default=240.0, help="for each server (default %(default)s)")
    return made


def run(options: argparse.Namespace, work: Path) -> list[Answers]:
    """Both servers, one after the other; a server that does not start is left out and told of."""
    checkpoint = DEMO if options.like == "demo" else checkpoint_in(work, options.like)
    words = round(options.turn_tokens * words_for(1000, checkpoint / "tokenizer.json") / 1000)
    talk = Talk(options.conversations, options.turns, options.at_once, words, options.answer_tokens)
    common = {
        "max_num_seqs": 64,
        "enable_prefix_caching": True,
        "block_size": _BLOCK_TOKENS,
        "num_gpu_blocks_override": options.cache_tokens // _BLOCK_TOKENS,
        **options.engine_args,
    }
    ways: dict[str, dict[str, float]] = {"the GPU's": {}}
    if options.offload_gib:
        ways[f"and {options.offload_gib:g} GiB of host memory"] = {"kv_offloading_size": options.offload_gib}
    results: list[Answers] = []
    for number, (name, further) in enumerate(ways.items()):
        logs = options.out / str(number)
        logs.mkdir(exist_ok=True)
        own = work / f"kv_offload-{number}"
        own.mkdir(exist_ok=True)
        setup = Setup(checkpoint, own, logs, options.vllm_python.absolute(), common | further, options.start_limit_s)
        try:
            with over_vllm(setup) as serving:
                print(f"{name}: ready after {serving.ready_s:.0f} s", flush=True)
                target = serving.target
                url = f"http://{target.host}:{target.port}/v1"
                asyncio.run(converse("warm-up", url, Talk(4, 2, 4, 64, 8)))
                results.append(asyncio.run(converse(name, url, talk)))
        except StartError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        (options.out / "results.json").write_bytes(msgspec.json.encode([asdict(one) for one in results]))
        print(table(results), flush=True)
    return results


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a server is missing or a request failed."""
    options = parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kv_offload-") as scratch:
        work = Path(scratch) if options.like == "demo" else room_for(options.like)
        work.mkdir(parents=True, exist_ok=True)
        results = run(options, work)
    return int(len(results) < 1 + bool(options.offload_gib) or any(one.failed for one in results))


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
