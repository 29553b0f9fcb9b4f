"""`vllm serve`, /v1 over the same vLLM and the embedded engine, in turns on one machine.

`python -m benchmarks_vllm.vllm_serve --vllm-python PYTHON --out OUT`, on a GPU a 7B of random weights; `--quick` asks a
few requests of the demo on a CPU. All servers share the device: each vLLM takes `--memory` of it. Results are written
after every measurement. With `--tp-size` both vLLMs have several GPUs, and a further server has one. `--kill-worker`
kills a worker behind /v1 at the end. `--record results.json` measures nothing: it puts such results into `results/` and
RESULTS.md, of several runs those of the last for each load.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.clients.driver import Clients, exit_on_sigterm
from benchmarks.support import ROOT
from benchmarks.support.checkpoint_shapes import DEMO, SHAPES
from benchmarks.support.machine import conditions
from benchmarks.support.options import levels, positive, recorded_command
from benchmarks.support.random_checkpoint import checkpoint_in, room_for
from benchmarks.support.report import compact, with_section
from benchmarks_vllm.vllm_serve.loads import loads
from benchmarks_vllm.vllm_serve.report import summary
from benchmarks_vllm.vllm_serve.servers import EMBEDDED, ONE_GPU, SERVERS, TENSOR_PARALLEL, Setup
from benchmarks_vllm.vllm_serve.session import Amounts, Results, Session, merged, read, write

_DOCUMENT = ROOT / "engines" / "vllm" / "benchmarks_vllm" / "RESULTS.md"
_RECORDED = Path(__file__).parents[1] / "results" / "vllm_serve.json"
_FULL: dict[str, Any] = {
    "concurrency": (1, 16, 64, 256),
    "per_stream": 4,
    "json_at": 64,
    "rate": (30.0,),
    "seconds": 12.0,
    "rounds": 3,
    "tokens": 128,
    "like": "qwen2.5-7b",
}
_QUICK: dict[str, Any] = {
    "concurrency": (1, 4),
    "per_stream": 2,
    "json_at": 2,
    "rate": (1.0,),
    "seconds": 3.0,
    "rounds": 1,
    "tokens": 16,
    "like": "demo",
}
_GPU_ARGUMENTS: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_num_seqs": 256,
    "max_model_len": 32768,
    "attention_backend": "FLASH_ATTN",
    "enable_prefix_caching": False,
}
_CPU_ARGUMENTS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 16,
    "max_model_len": 2048,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}
_MEMORY_SHARE = 0.3
"""Of the GPU's memory for each vLLM: room for two of them and the embedded engine."""
_PROMPT_TOKENS = 66


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks_vllm.vllm_serve", description=__doc__.partition("\n")[0])
    made.add_argument("--vllm-python", type=Path, help="interpreter of an environment with vLLM")
    made.add_argument("--out", type=Path, help="folder for results and logs")
    made.add_argument("--work", type=Path, help="folder for checkpoint and repositories (default: a temporary one)")
    made.add_argument("--quick", action="store_true", help="the demo, a few requests, settings for a CPU")
    made.add_argument("--record", type=Path, nargs="+", metavar="FILE", help="put results of runs into RESULTS.md")
    made.add_argument("--servers", help="with commas between (default: all that suit --tp-size)")
    made.add_argument("--tp-size", type=positive, default=1, help="GPUs of both vLLMs (default %(default)s)")
    made.add_argument(
        "--together",
        action="store_true",
        help="start the servers side by side; vLLMs then need kv_cache_memory_bytes among --engine-args",
    )
    made.add_argument("--apart", action="store_true", help="one server at a time, each with all its rounds")
    made.add_argument(
        "--api", choices=("chat", "completions"), default="chat", help="asked by the client (default %(default)s)"
    )
    made.add_argument("--kill-worker", action="store_true", help="kill the last worker behind /v1 at the end")
    made.add_argument("--like", choices=("demo", *SHAPES), help="the checkpoint: its shape, or the demo itself")
    made.add_argument("--concurrency", type=levels, help="streams in a closed loop (default 1,16,64,256)")
    made.add_argument("--cells", type=cells, default=(), help="further streams, as 32x8192x1024 (tokens in and out)")
    made.add_argument("--per-stream", type=positive, help="requests of each stream (default 4)")
    made.add_argument("--json-at", type=int, help="streams of JSON, 0 for none (default 64)")
    made.add_argument("--rate", type=rates, help="random arrivals, requests/s, as 10,30; 0 for none (default 30)")
    made.add_argument("--seconds", type=float, help="over which they come (default 12)")
    made.add_argument("--tokens", type=positive, help="of an answer in a closed loop (default 128)")
    made.add_argument("--rounds", type=positive, help="most rounds over all loads (default 3)")
    made.add_argument("--memory", type=float, default=_MEMORY_SHARE, help="of a GPU's for each vLLM (%(default)s)")
    made.add_argument("--engine-args", type=msgspec.json.decode, default={}, metavar="JSON", help="for both vLLMs")
    made.add_argument(
        "--serve-args", type=msgspec.json.decode, default={}, metavar="JSON", help="for `vllm serve` alone"
    )
    made.add_argument("--start-limit-s", type=float, default=240.0, help="for each server (default %(default)s)")
    made.add_argument("--budget-s", type=float, default=560.0, help="seconds for all (default %(default)s)")
    return made


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; those of `--quick` where nothing else is said.

    Raises:
        SystemExit: a server of an unknown name, or no interpreter.
    """
    made = parser()
    made.set_defaults(**(_QUICK if made.parse_args(arguments).quick else _FULL))
    options = made.parse_args(arguments)
    if options.record is None and not (options.vllm_python and options.out):
        made.error("--vllm-python and --out are needed")
    left_out = EMBEDDED if options.tp_size > 1 else ONE_GPU
    named = options.servers.split(",") if options.servers else [name for name in SERVERS if name != left_out]
    options.servers = [name.strip() for name in named]
    if unknown := [name for name in options.servers if name not in SERVERS]:
        made.error(f"{', '.join(unknown)}: none of {', '.join(SERVERS)}")
    return options


def cells(text: str) -> tuple[tuple[int, int, int], ...]:
    """Cells from `32x8192x1024,...`: streams, tokens in, tokens out."""
    found = tuple(tuple(map(int, cell.split("x"))) for cell in text.split(","))
    if not all(len(cell) == 3 and min(cell) > 0 for cell in found):
        raise argparse.ArgumentTypeError(f"{text!r}: cells are STREAMSxINxOUT, with commas between")
    return found  # type: ignore[return-value]


def rates(text: str) -> tuple[float, ...]:
    """Rates from `10,30`."""
    return tuple(map(float, text.split(",")))


def engine_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Engine arguments of both vLLMs."""
    usual = _CPU_ARGUMENTS if options.quick else _GPU_ARGUMENTS | {"gpu_memory_utilization": options.memory}
    parallel = {TENSOR_PARALLEL: options.tp_size} if options.tp_size > 1 else {}
    return {**usual, **parallel, **options.engine_args}


def run(options: argparse.Namespace, work: Path, command: str) -> Results:
    """Everything, with results written to `options.out` as they come."""
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {line}", flush=True)

    checkpoint = DEMO if options.like == "demo" else checkpoint_in(work, options.like)
    say(f"checkpoint: {checkpoint.name}")
    amounts_of = (options.concurrency, options.per_stream, options.json_at, options.rate, options.seconds)
    chosen = loads(*amounts_of, options.cells)
    setup = Setup(
        checkpoint=checkpoint,
        work=work,
        logs=options.out,
        # Not resolved: in a virtual environment it is a link to the base Python.
        vllm_python=options.vllm_python.absolute(),
        arguments=engine_arguments(options),
        serve_arguments=options.serve_args,
        limit_s=options.start_limit_s,
        api=options.api,
    )
    until = begun + options.budget_s
    amounts = Amounts(chosen, _PROMPT_TOKENS, options.tokens, options.rounds, until)
    results = Results(conditions(command), dict(setup.arguments), [load.name for load in chosen])

    def save() -> None:
        write(results, options.out / "results.json")
        (options.out / "summary.md").write_text(summary(results), encoding="utf-8")

    with Clients() as clients:
        session = Session(clients, setup, amounts, results, save, say)
        for names in [[name] for name in options.servers] if options.apart else [options.servers]:
            session.run(names, together=options.together, kill_worker=options.kill_worker)
    return results


def record(results: Results, document: Path = _DOCUMENT, recorded: Path = _RECORDED) -> None:
    """Put the tables of a run into their section of `document`, and all its numbers into `recorded`."""
    recorded.write_bytes(compact(msgspec.to_builtins(results)))
    text = document.read_text(encoding="utf-8")
    document.write_text(with_section(text, "vllm-serve", summary(results)), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a server is missing or a request failed."""
    options = parse(arguments)
    if options.record is not None:
        record(reduce(merged, map(read, options.record)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    program = ["benchmarks_vllm.vllm_serve", "--vllm-python", "PYTHON"]
    command = recorded_command(program, arguments, ["--out", "--work", "--vllm-python"])
    with tempfile.TemporaryDirectory(prefix="vllm_serve-") as scratch:
        work = options.work or (Path(scratch) if options.like == "demo" else room_for(options.like))
        work.mkdir(parents=True, exist_ok=True)
        results = run(options, work.absolute(), command)
    print(summary(results))
    return int(bool(results.problems) or any(cell.result.failed for cell in results.cells))


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
