"""Measure the embedded engine on a GPU, unattended: `python -m benchmarks.gpu --out OUT`.

Makes a random checkpoint of a 7B model, builds the engine, drives it directly, serves it with the real tritonserver and
drives /v1 in the same way, checks the demo checkpoint's golden answers, and compares further settings of the engine.
The order is that of importance. Whatever needs the GPU runs in a process of its own with a limit in time; a stage that
fails or that there is no time for leaves the others' results whole. After every stage `results.json` and `summary.md`
are written anew. `--everything` runs the further commands on the engine too: long prompts, several GPUs and FP8, mixed
load, drafts, kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.asking import Asker
from benchmarks.driver import Clients, measure, warm_up
from benchmarks.engine import (
    ROOT,
    Variant,
    Work,
    floor,
    golden_lines,
    gpu_versions,
    parse_variant,
    run_variant,
    show_log,
)
from benchmarks.gpu_report import MAIN, Results, summary
from benchmarks.machine import conditions
from benchmarks.options import levels
from benchmarks.random_checkpoint import configuration, tensor_shapes, write
from benchmarks.target import Plan, http_target, words_for

FURTHER = (
    "unfused:fused_ops=false",
    "sync:async_batching=false",
    "no-graphs:cuda_graphs=false",
    "varlen:attention=varlen",
    "sdpa:attention=sdpa",
)
_DEMO = ROOT / "demo" / "checkpoint"
_FAIR = {"prefix_sharing": "false"}
"""Prompts are all different for the engine alone; /v1 repeats some, which must not count for it."""
_BUDGET_S = 560.0
"""Seconds for all stages."""
_EVERYTHING_S = 2400.0
"""The same with `--everything`."""
_LEAST_S = 20.0
"""Seconds left under which no stage is begun."""


def in_child(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a process of its own, which gives the GPU back.

    Raises:
        TimeoutError: it took more than `seconds`; the process is killed.
        RuntimeError: it raised, or the process died.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_call, args=(sender, function, arguments))
    child.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise TimeoutError(f"no end after {seconds:.0f} s")
        problem, found = receiver.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"the process died with {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
    if problem:
        raise RuntimeError(problem)
    return found


def _call(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    show_log()
    try:
        sender.send(("", function(*arguments)))
    except Exception as error:
        traceback.print_exc()
        sender.send((f"{type(error).__name__}: {error}", None))


class Session:
    """Runs stages one after another until the time is used up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work or room_for(options.like)
        options.out.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + (options.budget_s or (_EVERYTHING_S if options.everything else _BUDGET_S))
        self.results = Results()
        self.repositories = {name: self.work / f"{name}-repository" for name in ("random", "demo")}

    def stage(self, name: str, limit_s: float, work: Callable[[float], str]) -> bool:
        """Do `work`, which is told how many seconds it has; whether it came to its end."""
        seconds = min(limit_s, self.deadline - time.monotonic() - 5)
        started, good = time.monotonic(), False
        if seconds < _LEAST_S:
            said = "left out: no time"
        else:
            try:
                said, good = work(seconds), True
            except Exception as error:
                traceback.print_exc()
                said = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
        self.results.stages[name] = f"{time.monotonic() - started:.0f} s: {said}"
        print(f"{name}: {self.results.stages[name]}", flush=True)
        content = msgspec.json.format(msgspec.json.encode(self.results), indent=1)
        (self.options.out / "results.json").write_bytes(content)
        (self.options.out / "summary.md").write_text(summary(self.results, self.options.concurrency), encoding="utf-8")
        return good

    # Stages. Each returns a few words on how it went.

    def prepare(self, seconds: float) -> str:
        """The checkpoint and both engines."""
        from openai_bls.builder.build import build
        from openai_bls.builder.recipe import BuildOptions
        from openai_bls.launcher.testing import copy_models

        options = self.options
        source = checkpoint_in(self.work, options.like, seconds)
        for name, model, length in (("random", source, options.max_model_len), ("demo", _DEMO, None)):
            repository = self.repositories[name]
            if not repository.exists():
                copy_models(ROOT / "model_repository", repository)
            build(
                BuildOptions(
                    model=str(model),
                    model_repository=repository,
                    max_model_len=length,
                    max_batch_size=max(options.concurrency),
                    served_model_name=name,
                ),
                print,
            )
        self.results.made = asdict(conditions("python -m benchmarks.gpu", in_child(60, gpu_versions)))
        self.results.floor = in_child(60, floor, self.repositories["random"] / "tensorrt_llm" / "1")
        return "ok"

    def direct(self, variant: str, seconds: float) -> str:
        """The engine alone."""
        options, folder = self.options, self.repositories["random"] / "tensorrt_llm" / "1"
        work = Work(options.prompt_tokens, options.output_tokens, options.requests_per_slot, limit_s=options.level_s)
        chosen = parse_variant(variant)
        chosen = replace(chosen, options=chosen.options | _FAIR)
        found: Variant = in_child(seconds, run_variant, chosen, folder, options.concurrency, work, self.results.floor)
        self.results.direct.append(found)
        return found.error or " ".join(f"{level.tokens_per_s:,.0f}" for level in found.levels) + " tokens/s"

    def serve(self, seconds: float) -> str:
        """The same engine behind tritonserver and /v1."""
        from openai_bls.launcher.testing import run_server

        options = self.options
        chosen = _FAIR | {"max_batch_size": str(max(options.concurrency))}
        environment = {f"OPENAI_BLS_ENGINE_{name.upper()}": value for name, value in chosen.items()}
        with Clients() as clients, run_server(self.repositories["random"], environment, timeout=seconds / 2) as server:
            target = http_target("chat", server.openai_url, model="openai_bls")
            words = words_for(options.prompt_tokens, _DEMO / "tokenizer.json")
            plan = Plan(target, 16, 32, words, options.output_tokens, seconds / 2)
            plan = replace(plan, prompt_words=warm_up(clients, plan, options.prompt_tokens))
            for level in options.concurrency:
                requests = max(4, options.requests_per_slot * level)
                one = measure(clients, "/v1 chat", replace(plan, concurrency=level, requests=requests), server.pid)
                self.results.served.append(one)
        return " ".join(f"{one.tokens_per_s:,.0f}" for one in self.results.served) + " tokens/s"

    def check(self, variant: str, seconds: float) -> str:
        """The golden answers of the demo checkpoint."""
        chosen = parse_variant(variant)
        folder = self.repositories["demo"] / "tensorrt_llm" / "1"
        found = self.results.golden[chosen.name] = in_child(seconds, check_golden, folder, chosen.options)
        return f"{found['alone']} alone, {found['together']} together, of {found['answers']}"

    def further(self, module: str, arguments: Sequence[str], seconds: float) -> str:
        """Another command on the engine, whose tables go to a file of their own."""
        path = self.options.out / f"{module}.md"
        with path.open("w", encoding="utf-8") as out:
            command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
            # A group of its own, as it starts processes too.
            started = subprocess.Popen(command, cwd=ROOT, stdout=out, start_new_session=True)
            try:
                code = started.wait(seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        if code:
            raise RuntimeError(f"python -m benchmarks.{module} ended with {code}")
        return f"tables in {path.name}"


def further_commands(options: argparse.Namespace, engine_dir: Path) -> dict[str, list[str]]:
    """Arguments of the further commands on the engine, by module, the most important first."""
    gpus = in_child(60, gpu_count)
    shape = ["--shape", options.like]
    sizes = ",".join(str(size) for size in (1, 2) if size <= gpus)
    return {
        "builds": [*shape, "--tp-sizes", sizes, "--fp8", "--prompts", "2048,8192,24000"],
        "mixed_load": [str(engine_dir), "--long-prompt", "24000", "--variant", MAIN, "--variant", "none:max_step_ms=0"],
        "speculation": shape,
        "gpu_kernels": [],
    }


def gpu_count() -> int:
    """GPUs of this machine."""
    import torch

    return int(torch.cuda.device_count())


def room_for(like: str) -> Path:
    """A folder for the checkpoint `like`: in memory where that has the room, else on disk."""
    needed = 1.1 * 2 * sum(math.prod(shape) for _, shape in tensor_shapes(configuration(like)))
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if folder.is_dir() and shutil.disk_usage(folder).free > needed:
            return folder / "openai_bls-bench"
    raise OSError(f"no room for {needed / 1e9:.0f} GB: name a folder with --work")


def checkpoint_in(folder: Path, like: str, seconds: float) -> Path:
    """The random checkpoint `like` in `folder`, written within `seconds` unless it is there."""
    found = folder / like
    if not (found / "model.safetensors.index.json").is_file():
        in_child(seconds, write, like, found)
    return found


def check_golden(engine_dir: Path, options: dict[str, str]) -> dict[str, Any]:
    """How many golden answers an engine gives, one request at a time and all at once."""
    from transformers import AutoTokenizer

    from openai_bls.core.engine_types import GenerationRequest, SamplingParams
    from openai_bls.engines.registry import create_engine

    lines = golden_lines()
    tokenizer: Any = AutoTokenizer.from_pretrained(_DEMO)
    asker = Asker()
    engine = asker.engine = create_engine(engine_dir, asker.on_step, options)

    def request(line: dict[str, Any]) -> GenerationRequest:
        text = line.get("raw") or tokenizer.apply_chat_template(
            line["messages"], tools=line.get("tools"), tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text)["input_ids"]
        return GenerationRequest(
            request_id=0,
            prompt_token_ids=ids,
            max_tokens=min(engine.info.max_model_len - len(ids), line["tokens"] + 32),
            sampling=SamplingParams(temperature=0),
            stop_token_ids=engine.info.eos_token_ids,
        )

    try:
        requests = [request(line) for line in lines]
        found = {"alone": asker.ask(requests, at_once=1), "together": asker.ask(requests)}
    finally:
        engine.close()
    wrong = {
        name: [
            i
            for i, (answer, line) in enumerate(zip(answers, lines, strict=True))
            if tokenizer.decode(answer.tokens, skip_special_tokens=True) != line["answer"]
        ]
        for name, answers in found.items()
    }
    # The smallest gap of logits along each answer that differs: rounding may turn small ones.
    margins = {i: lines[i]["margin"] for numbers in wrong.values() for i in numbers}
    error = next((answer.error for answers in found.values() for answer in answers if answer.error), "")
    counts = {name: len(lines) - len(ids) for name, ids in wrong.items()}
    return {"answers": len(lines), "margins": margins, "error": error} | counts


def run(session: Session) -> None:
    """All stages, the most important first."""
    if not session.stage("prepare", 150, session.prepare):
        return
    session.stage(MAIN, 150, functools.partial(session.direct, MAIN))
    session.stage("serve", 150, session.serve)
    session.stage(f"golden {MAIN}", 60, functools.partial(session.check, MAIN))
    for variant in session.options.variant or FURTHER:
        name = parse_variant(variant).name
        session.stage(name, 120, functools.partial(session.direct, variant))
        session.stage(f"golden {name}", 60, functools.partial(session.check, variant))
    if session.options.everything:
        engine_dir = session.repositories["random"] / "tensorrt_llm" / "1"
        for module, given in further_commands(session.options, engine_dir).items():
            session.stage(module, 600, functools.partial(session.further, module, given))


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a stage failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--work", type=Path, help="folder for checkpoints (default: in /dev/shm, if it has the room)")
    parser.add_argument("--like", default="qwen2.5-7b", help="shape of the checkpoint (default %(default)s)")
    parser.add_argument("--concurrency", type=levels, default="1,16,64,256", help="default %(default)s")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="default %(default)s")
    parser.add_argument("--output-tokens", type=int, default=128, help="default %(default)s")
    parser.add_argument("--requests-per-slot", type=int, default=3, help="default %(default)s")
    parser.add_argument("--max-model-len", type=int, default=32768, help="default %(default)s")
    parser.add_argument("--level-s", type=float, default=30.0, help="most seconds for a level (default %(default)s)")
    parser.add_argument("--everything", action="store_true", help="the further commands on the engine too")
    parser.add_argument(
        "--budget-s",
        type=float,
        help=f"seconds (default {_BUDGET_S:.0f}, or {_EVERYTHING_S:.0f} for everything)",
    )
    parser.add_argument("--variant", action="append", metavar="NAME:OPTION=VALUE,...", help="settings to compare")
    session = Session(parser.parse_args(arguments))
    run(session)
    print(summary(session.results, session.options.concurrency))
    return int(any("FAILED" in said for said in session.results.stages.values()))


if __name__ == "__main__":
    sys.exit(main())
