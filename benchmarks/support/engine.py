"""The embedded engine driven directly, in this process, with no server.

Closed loop through the same `Engine` interface that the model `tensorrt_llm` uses: at each level as many requests are
in progress as the level says, and each that ends is followed by another. Prompts are random and all different; end
tokens end nothing.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.support.asking import Asker, greedy, random_ids
from benchmarks.support.spread import percentile_ms
from openai_bls.core.engine_types import GenerationRequest


@dataclass(frozen=True)
class Work:
    """Requests at each level."""

    prompt_tokens: int = 64
    output_tokens: int = 128
    requests_per_slot: int = 3
    min_requests: int = 4
    limit_s: float = 60.0
    """Seconds for a level."""

    def requests_at(self, level: int) -> int:
        """Requests in all at concurrency `level`."""
        return max(self.min_requests, self.requests_per_slot * level)


@dataclass
class Level:
    """Results at one concurrency. Times are milliseconds."""

    concurrency: int
    requests: int
    failed: int
    tokens: int
    tokens_per_s: float
    first_token_p50: float
    first_token_p99: float
    gap_p50: float
    gap_p99: float
    steps: int


@dataclass
class Variant:
    """Results with one set of engine options."""

    name: str
    options: dict[str, str]
    load_s: float = 0.0
    """Seconds until the engine was ready."""
    levels: list[Level] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Floor:
    """The least time of a step of one sequence."""

    weight_bytes: int
    """Of all tensors."""
    step_bytes: int
    """Of those that every step reads: without the input embeddings, of which it reads a row, unless they are the
    output layer too."""
    bytes_per_s: float
    """Read and written by a copy from device memory to device memory; 0 without a GPU."""

    @property
    def token_ms(self) -> float:
        """The least milliseconds per token."""
        return self.step_bytes / self.bytes_per_s * 1e3 if self.bytes_per_s else math.nan


def run_level(asker: Asker, work: Work, level: int, count: int) -> Level:
    """Make `count` requests, `level` at a time.

    Raises:
        TimeoutError: they took longer than the work's limit.
    """
    numbers = random.Random(level)
    requests = [greedy(random_ids(numbers, work.prompt_tokens), work.output_tokens) for _ in range(count)]
    return measured(asker, requests, level, work.limit_s)


def measured(asker: Asker, requests: Sequence[GenerationRequest], level: int, limit_s: float) -> Level:
    """Make `requests`, `level` at a time; one that has fewer tokens than it may has failed.

    Raises:
        TimeoutError: they took longer than `limit_s`.
    """
    assert asker.engine is not None
    steps, started = asker.engine.stats().steps, time.perf_counter()
    answers = asker.ask(requests, limit_s, at_once=level)
    seconds = max(answer.ended for answer in answers) - started
    first = np.array([answer.times[0] - answer.asked for answer in answers if answer.times])
    gaps = np.concatenate([np.diff(answer.times) for answer in answers])
    tokens = sum(len(answer.tokens) for answer in answers)
    return Level(
        concurrency=level,
        requests=len(requests),
        failed=sum(len(answer.tokens) != one.max_tokens for answer, one in zip(answers, requests, strict=True)),
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        first_token_p50=percentile_ms(first, 50),
        first_token_p99=percentile_ms(first, 99),
        gap_p50=percentile_ms(gaps, 50),
        gap_p99=percentile_ms(gaps, 99),
        steps=asker.engine.stats().steps - steps,
    )


def run_levels(asker: Asker, name: str, levels: Sequence[int], work: Work) -> Iterator[Level]:
    """Measure every level; each is told on stderr."""
    for level in levels:
        # Whatever is made on first use.
        run_level(asker, Work(work.prompt_tokens, 8, limit_s=work.limit_s), level, min(level, 32))
        measured = run_level(asker, work, level, work.requests_at(level))
        print(f"{name} at {level}: {measured.tokens_per_s:,.0f} tokens/s", file=sys.stderr, flush=True)
        yield measured


def floor(checkpoint: Path) -> Floor:
    """The floor of a checkpoint on this machine."""
    weight_bytes = embedding = 0
    has_output = False
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            [length] = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = msgspec.json.decode(file.read(length))
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            weight_bytes += end - begin
            embedding += (end - begin) * name.endswith("embed_tokens.weight")
            has_output |= name.endswith("lm_head.weight")
    return Floor(weight_bytes, weight_bytes - embedding * has_output, copy_bandwidth())


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy in the device's memory, the best of some; 0 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return 2 * (1 << 31) / best


def gpu_versions() -> dict[str, str]:
    """The GPU and what drives it."""
    import torch

    found = {"torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found |= {"GPU": torch.cuda.get_device_name(), "CUDA": str(torch.version.cuda)}
    return found


def parse_variant(text: str) -> Variant:
    """A variant from `name:option=value,option=value`; either part may be left out."""
    name, colon, options = text.rpartition(":")
    if not colon and "=" not in text:
        name, options = text, ""
    pairs = [part.partition("=") for part in options.split(",") if part]
    if any(not equals for _, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: options are name=value, with commas between")
    return Variant(name or options or "default", {key.strip(): value.strip() for key, _, value in pairs})


def show_log() -> None:
    """Let the engine say what it chose."""
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("openai_bls").setLevel(logging.INFO)
