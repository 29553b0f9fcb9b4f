"""Measure the embedded engine on GPUs, unattended: `python -m benchmarks_transformers.gpu --out OUT`.

Makes a checkpoint of a 7B model, drives the engine directly (`builds`): rates, long prompts, JSON, mixed load and the
demo's golden answers; serves it with the real tritonserver, where there is one, and drives /v1 in the same way; and
compares further settings of the engine. `--everything` adds FP8, drafts and a very long prompt.
The order is that of importance. Each stage is a process of its own with a limit in time, and where there are several
GPUs, stages run side by side, one on each. A stage that fails or that there is no time for leaves the others' results
whole, and its own up to there. After every stage `results.json` and `summary.md` are written anew.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.clients.driver import Clients, measure, warm_up
from benchmarks.clients.target import Plan, http_target, words_for
from benchmarks.support import ROOT
from benchmarks.support.checkpoint_shapes import DEMO
from benchmarks.support.children import attempt, in_child
from benchmarks.support.copying import Load
from benchmarks.support.engine import Floor, floor, gpu_versions, parse_variant
from benchmarks.support.machine import conditions
from benchmarks.support.options import levels
from benchmarks.support.random_checkpoint import checkpoint_in, room_for
from benchmarks_transformers import builds, speculation
from benchmarks_transformers.builds import FP8, Build
from benchmarks_transformers.gpu_report import MAIN, Results, summary

FURTHER = (
    "unfused:fused_ops=false",
    "sync:async_batching=false",
    "no-graphs:cuda_graphs=false",
    "varlen:attention=varlen",
    "sdpa:attention=sdpa",
)
_LEAST_S = 20.0
"""Seconds left under which no stage is begun."""
_PROMPT_TOKENS = 64
"""Tokens of a prompt on /v1."""


@dataclass(frozen=True)
class Stage:
    """A part of the measurements."""

    name: str
    limit_s: float
    work: Callable[[float, str], str]
    """Given the seconds it has and its GPU, as in `CUDA_VISIBLE_DEVICES`; returns a few words on how it went."""


class LeftOutError(Exception):
    """A stage for which this machine lacks something."""


class Session:
    """Runs stages until the time is used up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work or room_for(options.like)
        options.out.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + options.budget_s
        self.results = Results()
        self.gpus: list[str] = []
        self._lock = threading.Lock()
        self._plan = builds.Plan(options.concurrency, options.tokens, (), limit_s=60)

    def stage(self, stage: Stage, gpu: str) -> bool:
        """Do a stage; whether it came to its end."""
        started = time.monotonic()
        seconds, good = min(stage.limit_s, self.deadline - started - 5), False
        if seconds < _LEAST_S:
            said = "left out: no time"
        else:
            try:
                said, good = stage.work(seconds, gpu), True
            except LeftOutError as error:
                said = f"left out: {error}"
            except Exception as error:
                traceback.print_exc()
                said = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
        with self._lock:
            self.results.stages[stage.name] = f"{time.monotonic() - started:.0f} s: {said}"
            print(f"{stage.name}: {self.results.stages[stage.name]}", flush=True)
            content = msgspec.json.format(msgspec.json.encode(self.results), indent=1)
            (self.options.out / "results.json").write_bytes(content)
            (self.options.out / "summary.md").write_text(summary(self.results), encoding="utf-8")
        return good

    def run(self) -> None:
        """All stages, as many side by side as there are GPUs."""
        if not self.stage(Stage("prepare", 150, self.prepare), ""):
            return
        free: queue.SimpleQueue[str] = queue.SimpleQueue()
        for gpu in self.gpus:
            free.put(gpu)

        def on_one(stage: Stage) -> None:
            gpu = free.get()
            try:
                self.stage(stage, gpu)
            finally:
                free.put(gpu)

        with ThreadPoolExecutor(len(self.gpus)) as pool:
            list(pool.map(on_one, self.stages()))

    def stages(self) -> list[Stage]:
        """All stages, the most important first."""
        options, plan = self.options, self._plan
        whole = replace(
            plan, prompts=options.prompts, json=True, rates=options.rates, beside=max(options.prompts), limit_s=120
        )
        found = [Stage(MAIN, 180, partial(self.build, Build(MAIN), whole))]
        if options.everything:
            fp8 = FP8[1]
            longest, alone = Build("a very long prompt"), replace(plan, concurrency=(1,), prompts=[options.longest])
            found += [
                Stage(fp8.name, 100, partial(self.build, fp8, replace(plan, prompts=options.prompts))),
                Stage("drafts", 110, self.drafts),
                Stage(longest.name, 80, partial(self.build, longest, alone, golden=False)),
            ]
        found.append(Stage("serve", 150, self.serve))
        for variant in map(parse_variant, options.variant or FURTHER):
            build = Build(variant.name, options=variant.options)
            found.append(Stage(build.name, 120, partial(self.build, build, plan)))
        return [stage for stage in found if not options.only or stage.name in options.only]

    # Stages.

    def prepare(self, seconds: float, gpu: str) -> str:
        """The checkpoint, and what this machine is."""
        del gpu
        kinds = (False, True) if self.options.everything else (False,)
        self.gpus, versions, self.results.floor = in_child(seconds, survey, self.work, self.options.like, kinds)
        self.results.made = asdict(conditions("python -m benchmarks_transformers.gpu", versions))
        return f"{len(self.gpus)} GPUs"

    def build(self, build: Build, plan: builds.Plan, seconds: float, gpu: str, *, golden: bool = True) -> str:
        """One build of the engine, driven directly."""
        checkpoint = checkpoint_in(self.work, self.options.like)
        with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
            given = (build, Path(folder), checkpoint, plan, golden)
            found, problem = attempt(seconds, builds.measure, *given, gpus=gpu)
        result = builds.outcome(build, found, problem)
        with self._lock:
            self.results.builds.append(result)
            self.results.builds.sort(key=lambda one: one.speed.name != MAIN)  # others are held against it
        if result.speed.error:
            raise RuntimeError(result.speed.error)
        return " ".join(f"{level.tokens_per_s:,.0f}" for level in result.speed.levels) + " tokens/s"

    def drafts(self, seconds: float, gpu: str) -> str:
        """Drafts on texts that are copied and on others."""
        limit = str(max(1, int(seconds - _LEAST_S)))
        arguments = ["--shape", self.options.like, "--work", str(self.work), "--rounds", "1", "--limit-s", limit]
        loads: list[Load] = []
        try:
            given = speculation.parser().parse_args(arguments)
            in_child(seconds, speculation.run, given, gpus=gpu, tell=loads.append)
        finally:
            with self._lock:  # without their requests, which would fill the file
                self.results.drafts = [replace(load, requests=()) for load in loads]
        return f"{len(loads)} loads"

    def serve(self, seconds: float, gpu: str) -> str:
        """The engine with its own choices behind tritonserver and /v1."""
        from openai_bls.builder.build import build
        from openai_bls.builder.options.build import BuildOptions
        from openai_bls.launcher.errors import LaunchError
        from openai_bls.launcher.testing import copy_models, run_server
        from openai_bls.launcher.tritonserver.command import find_server

        try:
            find_server()
        except LaunchError as error:
            raise LeftOutError(str(error)) from None
        options, repository, ends = self.options, self.work / "repository", time.monotonic() + seconds
        if not repository.exists():
            copy_models(ROOT / "model_repository", repository)
        checkpoint = checkpoint_in(self.work, options.like)
        wanted = BuildOptions(
            str(checkpoint), repository, engine="transformers", max_batch_size=max(options.concurrency)
        )
        in_child(seconds, build, wanted, print, gpus=gpu)
        # /v1 repeats some prompts, which must not count for it.
        environment = {"OPENAI_BLS_ENGINE_PREFIX_SHARING": "false"} | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
        seconds = ends - time.monotonic()
        with Clients() as clients, run_server(repository, environment, timeout=seconds / 2) as server:
            target = http_target("chat", server.openai_url, model="openai_bls")
            words = words_for(_PROMPT_TOKENS, DEMO / "tokenizer.json")
            plan = Plan(target, 16, 32, words, options.tokens, seconds / 2)
            plan = replace(plan, prompt_words=warm_up(clients, plan, _PROMPT_TOKENS))
            for level in options.concurrency:
                at_level = replace(plan, concurrency=level, requests=max(4, 3 * level))
                one = measure(clients, "/v1 chat", at_level, server.pid)
                with self._lock:
                    self.results.served.append(one)
        return " ".join(f"{one.tokens_per_s:,.0f}" for one in self.results.served) + " tokens/s"


def survey(work: Path, like: str, kinds: Sequence[bool]) -> tuple[list[str], dict[str, str], Floor]:
    """GPUs as in `CUDA_VISIBLE_DEVICES`, versions, and the floor of the checkpoint; writes it.

    Args:
        work: folder of the checkpoint.
        like: its shape.
        kinds: of it, by whether it is a continuing one. What runs side by side finds them there.
    """
    import torch

    limit, *_ = (floor(checkpoint_in(work, like, continuing=kind)) for kind in kinds)
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    return named.split(","), gpu_versions(), limit


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks_transformers.gpu", description=__doc__.partition("\n")[0])
    made.add_argument("--out", type=Path, required=True, help="folder for the results")
    made.add_argument("--work", type=Path, help="folder for checkpoints (default: in /dev/shm, if it has the room)")
    made.add_argument("--like", default="qwen2.5-7b", help="shape of the checkpoint (default %(default)s)")
    made.add_argument("--concurrency", type=levels, default="1,2,9,16,64,256", help="default %(default)s")
    made.add_argument("--tokens", type=int, default=128, help="of an answer (default %(default)s)")
    made.add_argument("--prompts", type=levels, default="8192,24000", help="tokens, one alone (default %(default)s)")
    made.add_argument("--longest", type=int, default=131_000, help="a prompt by itself (default %(default)s)")
    made.add_argument(
        "--rates", type=levels, default="30,60,70,80", help="mixed load, requests/s (default %(default)s)"
    )
    made.add_argument("--everything", action="store_true", help="FP8, drafts and a very long prompt too")
    made.add_argument("--only", action="append", metavar="STAGE", help="these stages, by their names in the summary")
    made.add_argument("--budget-s", type=float, default=560.0, help="seconds for all (default %(default)s)")
    made.add_argument("--variant", action="append", metavar="NAME:OPTION=VALUE,...", help="settings to compare")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a stage failed."""
    session = Session(parser().parse_args(arguments))
    session.run()
    print(summary(session.results))
    return int(any("FAILED" in said for said in session.results.stages.values()))


if __name__ == "__main__":
    sys.exit(main())
