"""Start-up and memory of each process, and what an idle stream costs: `python -m benchmarks.startup`.

With the real server and the null engine. Times depend on what else the machine does; CPU seconds and memory hardly do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.cpu import sample_tree
from benchmarks.driver import exit_on_sigterm
from benchmarks.machine import conditions, triton_version
from benchmarks.memory import Memory, sample_memory
from benchmarks.report import markdown_table
from benchmarks.target import Target, http_request, http_target, openai_body
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.testing import RunningServer, run_server

_ROOT = Path(__file__).resolve().parent.parent
# Until freed memory has been given back and the clients' connections are gone.
_SETTLE_S = 2.0
_TOP = 6
# Tokens of an idle stream: one to know that it is open, the others to keep it open until all are.
_TOKENS = 4

# What a stub has loaded before it gets to model.py: numpy, with Triton's own module.
_IMPORT_SCRIPT = """
import importlib.util, json, sys, types
import numpy
for name in ("triton_python_backend_utils", "c_python_backend_utils"):
    sys.modules[name] = types.ModuleType(name)
folder, load = sys.argv[1:]
tokenizer = f"{folder}/tokenizer"
def memory():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("Rss:"))
before = memory()
print("BEGIN", file=sys.stderr, flush=True)
spec = importlib.util.spec_from_file_location("model", f"{folder}/model.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
exec(load)
print(memory() - before)
"""
# What the models' `initialize` loads, without what it starts.
_LOADS = {
    "preprocessing": """
import pathlib
from openai_bls.triton_models import stub_process
from openai_bls.triton_models.preprocessing.model import Preprocessing
stub_process.keep_torch_out()
loaded = Preprocessing(pathlib.Path(tokenizer))
stub_process.settle()
""",
    "tensorrt_llm": "import openai_bls.engines.null",
    "postprocessing": """
import pathlib
from openai_bls.triton_models import stub_process
from openai_bls.triton_models.postprocessing.model import Postprocessing
loaded = Postprocessing(pathlib.Path(tokenizer))
stub_process.settle()
""",
    "openai_bls": """
import openai_bls.triton_models.openai_bls.runtime
from openai_bls.triton_models import stub_process
from openai_bls.output.detokenizer import factory
loaded = factory.load(tokenizer)
stub_process.settle()
""",
}


@dataclass(frozen=True)
class ImportCost:
    """What one model's modules cost in a fresh interpreter, above the bare interpreter with numpy."""

    model: str
    import_ms: float
    """Time in imports, with the interpreter's own import timer running."""
    rss_mb: float
    """Growth of the resident memory, with the tokenizer where the model has one."""
    modules: int
    top: dict[str, float]
    """The packages that took longest, in ms, without what they import of others."""


@dataclass(frozen=True)
class StartCost:
    """One start of the server."""

    ready_s: float
    """From starting tritonserver until every model and /v1 is ready."""
    cpu_s: dict[str, float]
    """CPU seconds by then, by process; helper processes that have ended are left out."""
    memory: dict[str, Memory]
    """By process, idle."""


@dataclass(frozen=True)
class StreamCost:
    """Growth of RSS in kB a stream, by process; PSS would also move with what other servers on the machine share."""

    api: str
    streams: int
    open_kb: dict[str, list[float]]
    """While the streams are open and idle, in each round, above the idle server before the first round."""
    left_kb: dict[str, list[float]]
    """After they have ended."""


def parse_import_times(text: str) -> tuple[float, int, dict[str, float]]:
    """Read what `-X importtime` printed after the line BEGIN: ms in all, modules, ms by package, largest first."""
    packages: dict[str, float] = {}
    count = 0
    for line in text.partition("BEGIN\n")[2].splitlines():
        fields = line.removeprefix("import time:").split("|")
        if len(fields) == 3 and fields[0].strip().isdigit():
            package = fields[2].strip().partition(".")[0]
            packages[package] = packages.get(package, 0.0) + int(fields[0]) / 1000
            count += 1
    return sum(packages.values()), count, dict(sorted(packages.items(), key=lambda item: -item[1]))


def import_cost(repository: Path, model: str, repeats: int) -> ImportCost:
    """Import the model's modules in fresh interpreters; the median."""
    costs = []
    folder = str(repository / model / "1")
    command = [sys.executable, "-X", "importtime", "-c", _IMPORT_SCRIPT, folder, _LOADS[model]]
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise OSError(f"{model} cannot be loaded: {done.stderr.splitlines()[-1]}")
        total, count, packages = parse_import_times(done.stderr)
        top = {name: round(ms, 1) for name, ms in list(packages.items())[:_TOP]}
        costs.append(ImportCost(model, total, float(done.stdout), count, top))
    return sorted(costs, key=lambda cost: cost.import_ms)[len(costs) // 2]


def start_cost(repository: Path, flags: Sequence[str]) -> tuple[StartCost, str]:
    """Start the server once; and Triton's version."""
    before = time.monotonic()
    with run_server(repository, {"OPENAI_BLS_ENGINE": "null"}, flags) as server:
        ready = time.monotonic() - before
        sample = sample_tree(server.pid)
        seconds: dict[str, float] = {}
        for pid, name in sample.names.items():
            seconds[name] = seconds.get(name, 0.0) + sample.seconds[pid]
        time.sleep(_SETTLE_S)
        return StartCost(ready, seconds, sample_memory(server.pid)), triton_version(server.http_url)


async def _stream(request: bytes, target: Target, opened: asyncio.Semaphore) -> bool:
    """One stream from beginning to end; releases `opened` at its first event. Whether the end came."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    writer.write(request)
    tail, seen = b"", False
    try:
        while chunk := await reader.read(65536):
            tail = (tail + chunk)[-4096:]
            if not seen and b"data:" in tail:
                seen = True
                opened.release()
            if tail.endswith(b"0\r\n\r\n"):
                return seen
        return False
    finally:
        if not seen:
            opened.release()
        writer.close()


async def _round(target: Target, streams: int, pid: int) -> tuple[dict[str, Memory], dict[str, Memory]]:
    """Memory while `streams` streams are open, and after they have ended."""
    request = http_request(target, openai_body(target, "Hi", _TOKENS))
    opened = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(_stream(request, target, opened)) for _ in range(streams)]
    for _ in tasks:
        await opened.acquire()
    during = await asyncio.to_thread(sample_memory, pid)
    failed = sum(not complete for complete in await asyncio.gather(*tasks))
    if failed:
        raise OSError(f"{failed} of {streams} streams did not end as they should")
    await asyncio.sleep(_SETTLE_S)
    return during, await asyncio.to_thread(sample_memory, pid)


def stream_cost(server: RunningServer, api: str, streams: int, rounds: int) -> StreamCost:
    """Open `streams` streams, let them end, again."""
    url = server.openai_url if api == "chat" else server.http_url
    target = http_target("chat" if api == "chat" else "generate_stream", url, model="openai_bls")
    # What the first request of all makes the processes load and allocate is not the streams'.
    asyncio.run(_round(target, 1, server.pid))
    before = sample_memory(server.pid)
    samples = [asyncio.run(_round(target, streams, server.pid)) for _ in range(rounds)]

    def growth(which: int, name: str) -> list[float]:
        return [round((sample[which][name].rss_mb - before[name].rss_mb) * 1000 / streams, 1) for sample in samples]

    return StreamCost(
        api, streams, {name: growth(0, name) for name in before}, {name: growth(1, name) for name in before}
    )


def stream_costs(options: argparse.Namespace, repository: Path) -> list[StreamCost]:
    """For /v1 and for generate_stream, each on a server of its own."""
    environment = {
        "OPENAI_BLS_ENGINE": "null",
        "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": str(max(1, options.streams)),
        "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": f"{options.step_delay_ms:g}",
    }
    costs = []
    for api in ("chat", "generate_stream"):
        with run_server(repository, environment, options.flag) as server:
            costs.append(stream_cost(server, api, options.streams, options.rounds))
    return costs


def _words(rng: random.Random) -> Iterator[str]:
    """Words without end, in about the scripts of a real vocabulary: Latin, mostly after a space, Cyrillic, Chinese."""
    while True:
        kind = rng.random()
        if kind < 0.7:
            word = "".join(rng.choice("bcdfghklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(1, 4)))
            yield " " * (rng.random() < 0.55) + word
        elif kind < 0.85:
            yield " " + "".join(chr(rng.randint(0x430, 0x44F)) for _ in range(rng.randint(2, 5)))
        else:
            yield "".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(rng.randint(1, 3)))


def enlarged(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    """A byte-level BPE tokenizer.json with a made-up vocabulary of `size` tokens, before the added ones."""
    from tokenizers import pre_tokenizers

    stand_ins = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {char: place for place, char in enumerate(sorted(stand_ins.alphabet()))}
    merges = []
    for word in _words(random.Random(0)):
        text = stand_ins.pre_tokenize_str(word)[0][0]
        token = text[0]
        for char in text[1:]:
            if token + char not in vocab and len(vocab) < size:
                vocab[token + char] = len(vocab)
                merges.append([token, char])
            token += char
        if len(vocab) >= size:
            break
    added = [{**token, "id": len(vocab) + place} for place, token in enumerate(tokenizer["added_tokens"])]
    return {**tokenizer, "model": {**tokenizer["model"], "vocab": vocab, "merges": merges}, "added_tokens": added}


def enlarged_repository(repository: Path, folder: Path, size: int) -> Path:
    """A copy of `repository` whose models have a vocabulary of `size` tokens."""
    copy = folder / "model_repository"
    shutil.copytree(repository, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.glob("*/1/tokenizer/tokenizer.json"):
        file.write_text(json.dumps(enlarged(json.loads(file.read_text()), size), ensure_ascii=False))
    return copy


def _process_row(name: str, starts: Sequence[StartCost]) -> list[str]:
    rss = statistics.median(start.memory[name].rss_mb for start in starts)
    pss = statistics.median(start.memory[name].pss_mb for start in starts)
    seconds = statistics.median(start.cpu_s[name] for start in starts)
    return [name, f"{rss:.1f}", f"{pss:.1f}", f"{seconds:.2f}"]


def markdown(imports: Sequence[ImportCost], starts: Sequence[StartCost], streams: Sequence[StreamCost]) -> str:
    """All tables."""
    parts = []
    if imports:
        body = [
            [
                c.model,
                f"{c.import_ms:.0f}",
                f"{c.rss_mb:.1f}",
                str(c.modules),
                ", ".join(f"{n} {v:g}" for n, v in c.top.items()),
            ]
            for c in imports
        ]
        parts.append(markdown_table(["model", "imports ms", "RSS MB", "modules", "top packages, ms"], body))
    if starts:
        body = [_process_row(name, starts) for name in starts[0].memory]
        ready = sorted(start.ready_s for start in starts)
        parts.append(f"Ready after {statistics.median(ready):.1f} s ({ready[0]:.1f}–{ready[-1]:.1f}).")
        parts.append(markdown_table(["process", "RSS MB", "PSS MB", "CPU s to ready"], body))
    for cost in streams:
        parts.append(f"{cost.streams} idle streams on {cost.api}, RSS growth in kB a stream, by round:")
        body = [
            [name, " / ".join(map(str, cost.open_kb[name])), " / ".join(map(str, cost.left_kb[name]))]
            for name in cost.open_kb
        ]
        parts.append(markdown_table(["process", "open", "after the end"], body))
    return "\n\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=_ROOT / "model_repository")
    parser.add_argument(
        "--vocabulary", type=int, default=0, help="tokens of a made-up vocabulary; 0 takes the real one"
    )
    parser.add_argument("--repeats", type=int, default=3, help="starts, and imports (default %(default)s)")
    parser.add_argument("--streams", type=int, default=500, help="idle streams; 0 leaves them out (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of opening them (default %(default)s)")
    parser.add_argument("--step-delay-ms", type=float, default=4000, help="of the null engine (default %(default)s)")
    parser.add_argument(
        "--flag", action="append", default=[], help="a further flag for tritonserver, such as --flag=--x=y"
    )
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    options = _parser().parse_args(arguments)
    made = conditions("python -m benchmarks.startup")
    streams: list[StreamCost] = []
    starts: list[StartCost] = []
    try:
        with tempfile.TemporaryDirectory(prefix="openai_bls-") as folder:
            repository = options.repository.resolve()
            if options.vocabulary:
                repository = enlarged_repository(repository, Path(folder), options.vocabulary)
            imports = [import_cost(repository, model, options.repeats) for model in _LOADS]
            for _ in range(options.repeats):
                start, made.versions["tritonserver"] = start_cost(repository, options.flag)
                starts.append(start)
            if options.streams:
                streams = stream_costs(options, repository)
    except (OSError, LaunchError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown(imports, starts, streams))
    if options.json:
        document = {
            "conditions": asdict(made),
            "imports": [asdict(one) for one in imports],
            "starts": [asdict(one) for one in starts],
            "streams": [asdict(one) for one in streams],
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    return 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
