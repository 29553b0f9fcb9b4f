"""Embeddings of `vllm serve` and of /v1 over the same vLLM: `python -m benchmarks_vllm.embeddings`.

Both servers are started on one device, and take turns: 256 inputs in one request, 32 inputs in each of 8 requests at a
time, and one input in each of 64. The first round warms up. The least cosine of what both answer is told, too.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.clients.driver import exit_on_sigterm
from benchmarks.clients.processes import cpu_used, sample_cpu
from benchmarks.clients.target import prompt_text
from benchmarks.support.checkpoint_shapes import DEMO, SHAPES
from benchmarks.support.options import positive
from benchmarks.support.random_checkpoint import checkpoint_in
from benchmarks.support.report import markdown_table
from benchmarks.support.spread import percentile_ms
from benchmarks_vllm.vllm_serve.servers import Serving, Setup, over_vllm, vllm_serve

Vectors = np.ndarray[Any, np.dtype[np.float32]]

_CLIENTS = 16
"""Processes of the client."""
_GPU_ARGUMENTS: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_num_seqs": 256,
    "max_model_len": 8192,
    "attention_backend": "FLASH_ATTN",
    "enable_prefix_caching": False,
    "gpu_memory_utilization": 0.4,
}
_CPU_ARGUMENTS: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 16, "max_model_len": 128, "enforce_eager": True}
_COMPARED = 16
"""Inputs whose vectors are compared."""


class Load(NamedTuple):
    """What is asked at a time."""

    streams: int
    inputs: int
    """Of a request."""

    @property
    def name(self) -> str:
        """Name in the table."""
        return f"{self.streams} × {self.inputs} inputs"


LOADS = (Load(1, 256), Load(8, 32), Load(64, 1))


@dataclass(frozen=True)
class Asked:
    """One stream's work: requests one after the other."""

    port: int
    model: str
    requests: tuple[tuple[str, ...], ...]
    """Inputs of each."""


class Answered(NamedTuple):
    """What a stream got."""

    prompt_tokens: int
    seconds: list[float]
    """From each request to its answer."""


@dataclass(frozen=True)
class Measured:
    """A server under a load, once."""

    server: str
    load: Load
    tokens_per_s: float
    request_ms_p50: float
    request_ms_p99: float
    cpu_ms_per_input: float


def post(port: int, model: str, inputs: Sequence[str]) -> dict[str, Any]:
    """The answer of /v1/embeddings, with vectors in base64.

    Each on a new connection: servers close idle ones after a few seconds.

    Raises:
        OSError: it is an error.
    """
    body = json.dumps({"model": model, "input": inputs, "encoding_format": "base64"})
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        data = reply.read()
    if reply.status != 200:
        raise OSError(f"{reply.status}: {data[:300]!r}")
    found: dict[str, Any] = json.loads(data)
    return found


def ask(asked: Asked) -> Answered:
    """Ask one request after the other; runs in a process of the client."""
    tokens, seconds = 0, []
    for inputs in asked.requests:
        begun = time.monotonic()
        tokens += post(asked.port, asked.model, inputs)["usage"]["prompt_tokens"]
        seconds.append(time.monotonic() - begun)
    return Answered(tokens, seconds)


def texts(count: int, words: int, seed: int) -> Iterator[str]:
    """Inputs, none like another."""
    rng = random.Random(seed)
    return (prompt_text(words, rng) for _ in range(count))


def measure(pool: Pool, serving: Serving, load: Load, total: int, words: int, seed: int) -> Measured:
    """Have one server embed `total` inputs under a load."""
    source = texts(total, words, seed)
    requests = [tuple(next(source) for _ in range(load.inputs)) for _ in range(total // load.inputs)]
    target = serving.target
    asked = [Asked(target.port, target.model, tuple(requests[at :: load.streams])) for at in range(load.streams)]
    before, begun = sample_cpu(serving.pid), time.monotonic()
    answers = pool.map(ask, asked, chunksize=1)
    took = time.monotonic() - begun
    cpu_s = sum(cpu_used(before, sample_cpu(serving.pid)).values())
    seconds = np.array([second for answer in answers for second in answer.seconds])
    return Measured(
        serving.name,
        load,
        sum(answer.prompt_tokens for answer in answers) / took,
        percentile_ms(seconds, 50),
        percentile_ms(seconds, 99),
        1000 * cpu_s / total,
    )


def vectors(serving: Serving, words: int) -> Vectors:
    """Embeddings of a few inputs, of length 1: [inputs, numbers]."""
    found = post(serving.target.port, serving.target.model, list(texts(_COMPARED, words, 0)))["data"]
    rows: Vectors = np.stack([np.frombuffer(base64.b64decode(one["embedding"]), np.float32) for one in found])
    return np.divide(rows, np.linalg.norm(rows, axis=1, keepdims=True))


def table(measured: Sequence[Measured], base: str) -> str:
    """Medians of the rounds as Markdown; times are over the server `base`."""
    rows = []
    for load in dict.fromkeys(one.load for one in measured):
        of: dict[str, list[Measured]] = {}
        for one in measured:
            if one.load == load:
                of.setdefault(one.server, []).append(one)
        whole = {name: statistics.median(one.tokens_per_s for one in ones) for name, ones in of.items()}
        for name, ones in of.items():
            rest = [
                statistics.median(getattr(one, field) for one in ones)
                for field in ("request_ms_p50", "request_ms_p99", "cpu_ms_per_input")
            ]
            times = whole[name] / whole.get(base, math.nan)
            row = [load.name, name, f"{whole[name]:,.0f}", f"{times:.2f}", *(f"{number:.1f}" for number in rest[:2])]
            rows.append([*row, f"{rest[2]:.2f}"])
    headers = ("load", "server", "tokens/s", "times", "request p50 ms", "p99", "CPU ms per input")
    return markdown_table(headers, rows)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks_vllm.embeddings", description=__doc__.partition("\n")[0])
    made.add_argument("--vllm-python", type=Path, required=True, help="interpreter of an environment with vLLM")
    made.add_argument("--out", type=Path, required=True, help="folder for logs")
    made.add_argument("--work", type=Path, help="folder for checkpoint and repository (default: a temporary one)")
    made.add_argument("--quick", action="store_true", help="the demo, few inputs, settings for a CPU")
    made.add_argument("--like", choices=("demo", *SHAPES), default="qwen2.5-0.5b", help="default %(default)s")
    made.add_argument("--inputs", type=positive, default=2048, help="of each load (default %(default)s)")
    made.add_argument("--words", type=positive, default=100, help="of an input (default %(default)s)")
    made.add_argument("--rounds", type=positive, default=3, help="measured ones (default %(default)s)")
    made.add_argument("--engine-args", type=msgspec.json.decode, default={}, metavar="JSON", help="for both vLLMs")
    made.add_argument("--start-limit-s", type=float, default=240.0, help="for each server (default %(default)s)")
    return made


def run(options: argparse.Namespace, work: Path) -> list[Measured]:
    """Both servers under all loads, in turns."""
    setup = Setup(
        checkpoint=DEMO if options.like == "demo" else checkpoint_in(work, options.like),
        work=work,
        logs=options.out,
        vllm_python=options.vllm_python.absolute(),
        arguments={**(_CPU_ARGUMENTS if options.quick else _GPU_ARGUMENTS), **options.engine_args},
        limit_s=options.start_limit_s,
        task="embed",
    )
    measured: list[Measured] = []
    with ExitStack() as stack:
        pool = stack.enter_context(get_context("spawn").Pool(_CLIENTS))
        servers = [stack.enter_context(start(setup)) for start in (vllm_serve, over_vllm)]
        ours, theirs = (vectors(serving, options.words) for serving in servers)
        print(f"least cosine of {_COMPARED} embeddings: {float((ours * theirs).sum(axis=1).min()):.6f}", flush=True)
        for number in range(options.rounds + 1):
            # The other way round every second time, so that none always comes after the other.
            for serving in servers[:: 1 if number % 2 else -1]:
                for load in LOADS:
                    one = measure(pool, serving, load, options.inputs, options.words, number + 1)
                    print(f"round {number}, {load.name}, {one.server}: {one.tokens_per_s:,.0f} tokens/s", flush=True)
                    measured += [one] if number else []
    return measured


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    made = parser()
    if made.parse_args(arguments).quick:
        made.set_defaults(like="demo", inputs=256, words=20, rounds=1)
    options = made.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="embeddings-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        print(table(run(options, work.absolute()), "vllm serve"))
    return 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
