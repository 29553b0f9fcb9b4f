"""A GGUF file on a CPU, side by side: /v1 over llama.cpp, llama.cpp's own server, a plain loop over llama.cpp, and
transformers' `generate`: `python -m benchmarks_llama_cpp.laptop [FILE.gguf]`, by default SmolLM2 from the package
index.

All are loaded at the same time and asked in turn, round after round, each for the same number of greedy tokens after
prompts of token ids that are new each time. /v1 and llama.cpp's server are streamed, by the same client. llama.cpp's
server has its defaults. The plain loop decodes a batch and takes the likeliest tokens, in one Python process, with
llama.cpp's default parameters. These two and the engine have eight slots of 1,024 tokens each, and the same threads,
which sleep while they wait. `generate` has the dequantized weights in float32. Prints tables in Markdown: medians of
tokens/s, prompts included, medians of the ratios within a round, and CPU time per token of all processes of a
contender, the client left out.
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

from benchmarks.clients.processes import cpu_used, sample_cpu
from benchmarks.support import ROOT
from benchmarks.support.machine import conditions
from benchmarks.support.options import levels, positive
from benchmarks.support.report import markdown_table
from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.launcher.testing import copy_models, run_server

_PROMPT_TOKENS = 16
_MODEL = "laptop"
_SLOTS = 8
_LONGEST = 1024
"""Tokens of a slot."""
_SERVED, _RIVAL, _LOOP = "/v1, llama.cpp", "llama.cpp's server", "llama.cpp alone"
_GENERATE = "generate"

Ask = Callable[[list[list[int]], int], None]
"""Generate a number of tokens after each of the prompts, at the same time."""


class Contender(NamedTuple):
    """What is measured."""

    ask: Ask
    pid: int
    """Process that it is, with all below it."""


class Round(NamedTuple):
    """One measurement of a contender."""

    speed: float
    """Tokens/s."""
    cpu_ms: float
    """CPU time per token."""


class Cell(NamedTuple):
    """What is measured in one place of the table."""

    threads: int
    streams: int


def prompts(count: int) -> list[list[int]]:
    """New prompts, of ids that every vocabulary has."""
    return [[random.randrange(300, 1000) for _ in range(_PROMPT_TOKENS)] for _ in range(count)]


@contextlib.contextmanager
def asking(url: str, lengths: Sequence[str], fields: dict[str, object]) -> Iterator[Ask]:
    """Clients of a server of streamed completions.

    Args:
        url: the server's address.
        lengths: names of the fields that hold the number of tokens.
        fields: further fields of a request.
    """
    place = urlsplit(url)

    def one(prompt: list[int], tokens: int) -> None:
        connection = http.client.HTTPConnection(str(place.hostname), place.port)
        body = {"prompt": prompt, "temperature": 0, "stream": True, **fields, **dict.fromkeys(lengths, tokens)}
        connection.request("POST", "/v1/completions", msgspec.json.encode(body), {"content-type": "application/json"})
        answer = connection.getresponse().read()
        connection.close()
        if not answer.endswith(b"data: [DONE]\n\n"):
            raise RuntimeError(answer.decode(errors="replace")[-300:])

    with ThreadPoolExecutor(64) as pool:

        def ask(asked: list[list[int]], tokens: int) -> None:
            for _ in pool.map(one, asked, [tokens] * len(asked)):
                pass

        yield ask


@contextlib.contextmanager
def server(repository: Path, threads: int) -> Iterator[Contender]:
    """/v1 over the engine in `repository`."""
    environment = {"OPENAI_BLS_ENGINE_NUM_THREADS": str(threads)}
    with (
        run_server(repository, environment) as running,
        asking(running.openai_url, ("max_tokens", "min_tokens"), {"model": _MODEL}) as ask,
    ):
        yield Contender(ask, running.process.pid)


@contextlib.contextmanager
def child(kind: str, path: Path, threads: int) -> Iterator[Contender]:
    """A process of its own, which `serve_child` is."""
    command = [sys.executable, "-m", "benchmarks_llama_cpp.laptop", "--child", kind, str(path), str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sent, received = process.stdin, process.stdout

        def ask(asked: list[list[int]], tokens: int) -> None:
            sent.write(msgspec.json.encode([asked, tokens]) + b"\n")
            sent.flush()
            if received.readline() != b"done\n":
                raise RuntimeError(f"{kind} ended")

        if kind == _RIVAL:
            url = received.readline().decode().strip()
            with asking(url, ("max_tokens",), {"ignore_eos": True}) as ask_server:
                yield Contender(ask_server, process.pid)
        else:
            yield Contender(ask, process.pid)
        sent.close()


def serve_child(kind: str, path: Path, threads: int) -> None:
    """Answer lines of standard input, prompts and the number of tokens, one after the other."""
    if kind == _RIVAL:
        _serve_rival(path, threads)
        return
    generate = _loop(path, threads) if kind == _LOOP else _transformers(path, threads)
    for line in sys.stdin.buffer:
        generate(*msgspec.json.decode(line))
        sys.stdout.write("done\n")
        sys.stdout.flush()


def _serve_rival(file: Path, threads: int) -> None:
    """llama.cpp's own server, until standard input ends; its address is the first line of standard output."""
    import xllamacpp  # type: ignore[import-untyped]

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.hostnames = ["127.0.0.1"]
    params.n_parallel, params.n_ctx = _SLOTS, _SLOTS * _LONGEST
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    running = xllamacpp.Server(params)
    sys.stdout.write(f"{running.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


def _loop(file: Path, threads: int) -> Ask:
    from openai_bls_llama_cpp.library import ContextParams
    from openai_bls_llama_cpp.memory import KvCache
    from openai_bls_llama_cpp.model import LlamaModel, Row

    class DefaultModel(LlamaModel):
        """The model in a context with llama.cpp's defaults."""

        def _context_params(self, places: int, cache: KvCache, threads: int) -> ContextParams:
            params: ContextParams = self._lib.llama_context_default_params()
            params.n_ctx, params.n_seq_max = cache.tokens, places
            params.n_threads = params.n_threads_batch = threads
            return params

    model = DefaultModel(file, _SLOTS, KvCache(_SLOTS * _LONGEST, in_parts=True), threads)

    def generate(asked: list[list[int]], tokens: int) -> None:
        for place in range(len(asked)):
            model.cut(place, 0)
        model.decode([Row(place, 0, prompt[:-1], has_logits=False) for place, prompt in enumerate(asked)])
        last = [prompt[-1] for prompt in asked]
        for step in range(tokens):
            position = _PROMPT_TOKENS - 1 + step
            model.decode([Row(place, position, [token], has_logits=True) for place, token in enumerate(last)])
            last = [int(row.argmax()) for row in model.logits()]

    return generate


def _transformers(file: Path, threads: int) -> Ask:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )

    def generate(asked: list[list[int]], tokens: int) -> None:
        ids = torch.tensor(asked)
        options = {"do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens}
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    return generate


def built(file: str, folder: Path) -> Path:
    """A repository with the engine."""
    copy_models(ROOT / "model_repository", folder)
    options = BuildOptions(
        file, folder, engine="llama_cpp", served_model_name=_MODEL, max_batch_size=_SLOTS, max_model_len=_LONGEST
    )
    build(options, _tell)
    return folder


def measure(contenders: dict[str, Contender], streams: int, tokens: int, rounds: int) -> dict[str, list[Round]]:
    """Each contender in each round."""
    found: dict[str, list[Round]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender.ask(prompts(streams), 8)
    names = [*contenders]
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            ask, pid = contenders[name]
            asked = prompts(streams)
            before, started = sample_cpu(pid), time.perf_counter()
            ask(asked, tokens)
            seconds = time.perf_counter() - started
            used = sum(cpu_used(before, sample_cpu(pid)).values())
            found[name].append(Round(streams * tokens / seconds, 1e3 * used / (streams * tokens)))
    return found


def tables(results: dict[Cell, dict[str, list[Round]]]) -> str:
    """Speed and CPU time, each with the medians and the medians of the ratios to /v1 over llama.cpp within a round."""
    return "\n\n".join((_table(results, "tokens/s", 0), _table(results, "CPU ms per token", 1)))


def _table(results: dict[Cell, dict[str, list[Round]]], title: str, field: int) -> str:
    body = []
    for cell, rounds in results.items():
        found = {name: [one[field] for one in measured] for name, measured in rounds.items()}
        medians = [f"{statistics.median(values):,.1f}" for values in found.values()]
        ratios = [
            f"{statistics.median(a / b for a, b in zip(found[_SERVED], found[name], strict=True)):.2f}"
            for name in found
            if name != _SERVED
        ]
        body.append([f"{cell.threads} threads, {cell.streams} streams", *medians, *ratios])
    names = [*next(iter(results.values()))]
    return markdown_table([title, *names, *(f"{_SERVED} to {name}" for name in names if name != _SERVED)], body)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks_llama_cpp.laptop", description=__doc__)
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
    before = conditions("python -m benchmarks_llama_cpp.laptop " + " ".join(sys.argv[1:]))
    results: dict[Cell, dict[str, list[Round]]] = {}
    with tempfile.TemporaryDirectory() as work:
        llama_cpp = built(given.file, Path(work) / "llama_cpp")
        gguf = llama_cpp / "tensorrt_llm" / "1" / "checkpoint" / "model.gguf"
        for threads in given.threads:
            with contextlib.ExitStack() as stack:
                contenders = {
                    _SERVED: stack.enter_context(server(llama_cpp, threads)),
                    _RIVAL: stack.enter_context(child(_RIVAL, gguf, threads)),
                    _LOOP: stack.enter_context(child(_LOOP, gguf, threads)),
                    _GENERATE: stack.enter_context(child(_GENERATE, gguf, threads)),
                }
                for streams in given.streams:
                    cell = Cell(threads, streams)
                    results[cell] = measure(contenders, streams, given.tokens, given.rounds)
                    _tell(f"{cell}: {results[cell]}")
    print(f"{before.date}, {before.cores} cores, load {before.load_before:.1f} before\n\n{tables(results)}")
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
