"""A GGUF file on a CPU, side by side: /v1 over llama.cpp and over the embedded engine, llama.cpp in a plain loop, and
transformers' `generate`: `python -m benchmarks.laptop [FILE.gguf]`, by default SmolLM2 from the package index.

All are loaded at the same time and asked in turn, round after round, each for the same number of greedy tokens after
prompts that are new each time. /v1 is streamed. The plain loop decodes a batch and takes the likeliest tokens, in one
Python process with the threads that the engine has; `generate` has the dequantized weights in float32. Prints a table
in Markdown: medians of tokens/s, prompts included, and medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from benchmarks.machine import conditions
from benchmarks.options import levels, positive
from benchmarks.report import markdown_table
from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.launcher.testing import copy_models, run_server

ROOT = Path(__file__).resolve().parent.parent
_PROMPT_TOKENS = 16
_MODEL = "laptop"
_SERVED, _EMBEDDED, _LOOP, _GENERATE = "/v1, llama.cpp", "/v1, transformers", "llama.cpp alone", "generate"

Ask = Callable[[list[list[int]], int], None]
"""Generate a number of tokens after each of the prompts, at the same time."""


class Cell(NamedTuple):
    """What is measured in one place of the table."""

    threads: int
    streams: int


def prompts(count: int) -> list[list[int]]:
    """New prompts, of ids that every vocabulary has."""
    return [[random.randrange(300, 1000) for _ in range(_PROMPT_TOKENS)] for _ in range(count)]


@contextlib.contextmanager
def server(repository: Path, threads: int) -> Iterator[Ask]:
    """/v1 over the engine in `repository`."""
    environment = {"OPENAI_BLS_ENGINE_NUM_THREADS": str(threads)}
    with run_server(repository, environment) as running, ThreadPoolExecutor(64) as pool:
        place = urlsplit(running.openai_url)

        def one(prompt: list[int], tokens: int) -> None:
            connection = http.client.HTTPConnection(str(place.hostname), place.port)
            body = {"model": _MODEL, "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "temperature": 0}
            text = msgspec.json.encode(body | {"stream": True})
            connection.request("POST", "/v1/completions", text, {"content-type": "application/json"})
            answer = connection.getresponse().read()
            connection.close()
            if not answer.endswith(b"data: [DONE]\n\n"):
                raise RuntimeError(answer.decode(errors="replace")[-300:])

        def ask(asked: list[list[int]], tokens: int) -> None:
            for _ in pool.map(one, asked, [tokens] * len(asked)):
                pass

        yield ask


@contextlib.contextmanager
def child(kind: str, path: Path, threads: int) -> Iterator[Ask]:
    """A process of its own, which `serve_child` is."""
    command = [sys.executable, "-m", "benchmarks.laptop", "--child", kind, str(path), str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sent, received = process.stdin, process.stdout

        def ask(asked: list[list[int]], tokens: int) -> None:
            sent.write(msgspec.json.encode([asked, tokens]) + b"\n")
            sent.flush()
            if received.readline() != b"done\n":
                raise RuntimeError(f"{kind} ended")

        yield ask
        sent.close()


def serve_child(kind: str, path: Path, threads: int) -> None:
    """Answer lines of standard input, prompts and the number of tokens, one after the other."""
    generate = _loop(path, threads) if kind == _LOOP else _transformers(path, threads)
    for line in sys.stdin.buffer:
        generate(*msgspec.json.decode(line))
        sys.stdout.write("done\n")
        sys.stdout.flush()


def _loop(file: Path, threads: int) -> Ask:
    from openai_bls.engines.llama_cpp.model import LlamaModel, Row

    model = LlamaModel(file, 8, 8192, threads)

    def generate(asked: list[list[int]], tokens: int) -> None:
        for place, prompt in enumerate(asked):
            model.cut(place, 0)
            model.decode([Row(place, 0, prompt[:-1], has_logits=False)])
        last = [prompt[-1] for prompt in asked]
        for step in range(tokens):
            position = _PROMPT_TOKENS - 1 + step
            model.decode([Row(place, position, [token], has_logits=True) for place, token in enumerate(last)])
            last = model.logits().argmax(axis=1).tolist()

    return generate


def _transformers(checkpoint: Path, threads: int) -> Ask:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)

    def generate(asked: list[list[int]], tokens: int) -> None:
        ids = torch.tensor(asked)
        options = {"do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens}
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    return generate


def built(file: str, folder: Path, engine: Any) -> Path:
    """A repository with the engine of that kind."""
    copy_models(ROOT / "model_repository", folder)
    build(BuildOptions(file, folder, engine=engine, served_model_name=_MODEL, max_batch_size=8), _tell)
    return folder


def measure(contenders: dict[str, Ask], streams: int, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Tokens/s of each contender in each round."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for ask in contenders.values():
        ask(prompts(streams), 8)
    names = [*contenders]
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            asked = prompts(streams)
            started = time.perf_counter()
            contenders[name](asked, tokens)
            found[name].append(streams * tokens / (time.perf_counter() - started))
    return found


def table(results: dict[Cell, dict[str, list[float]]]) -> str:
    """Medians, and the medians of the ratios to /v1 over llama.cpp in the same round."""
    body = []
    for cell, found in results.items():
        medians = [f"{statistics.median(values):,.1f}" for values in found.values()]
        ratios = [
            f"{statistics.median(a / b for a, b in zip(found[_SERVED], found[name], strict=True)):.2f}"
            for name in found
            if name != _SERVED
        ]
        body.append([f"{cell.threads} threads, {cell.streams} streams", *medians, *ratios])
    names = [*next(iter(results.values()))]
    headers = ["tokens/s", *names, *(f"{_SERVED} to {name}" for name in names if name != _SERVED)]
    return markdown_table(headers, body)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.laptop", description=__doc__)
    parser.add_argument("file", nargs="?", default="smollm2", help="GGUF file, or a named model (smollm2)")
    parser.add_argument("--threads", type=levels, default=(1, 2))
    parser.add_argument("--streams", type=levels, default=(1, 8))
    parser.add_argument("--tokens", type=positive, default=96)
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        serve_child(given.child[0], Path(given.child[1]), int(given.child[2]))
        return 0
    before = conditions("python -m benchmarks.laptop " + " ".join(sys.argv[1:]))
    results: dict[Cell, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as work:
        llama_cpp = built(given.file, Path(work) / "llama_cpp", "llama_cpp")
        embedded = built(given.file, Path(work) / "transformers", "transformers")
        gguf, checkpoint = (folder / "tensorrt_llm" / "1" / "checkpoint" for folder in (llama_cpp, embedded))
        for threads in given.threads:
            with contextlib.ExitStack() as stack:
                contenders = {
                    _SERVED: stack.enter_context(server(llama_cpp, threads)),
                    _LOOP: stack.enter_context(child(_LOOP, gguf / "model.gguf", threads)),
                    _EMBEDDED: stack.enter_context(server(embedded, threads)),
                    _GENERATE: stack.enter_context(child(_GENERATE, checkpoint, threads)),
                }
                for streams in given.streams:
                    cell = Cell(threads, streams)
                    results[cell] = measure(contenders, streams, given.tokens, given.rounds)
                    _tell(f"{cell}: {results[cell]}")
    print(f"{before.date}, {before.cores} cores, load {before.load_before:.1f} before\n\n{table(results)}")
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
