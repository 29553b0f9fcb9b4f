"""Command `build`: a Hugging Face checkpoint becomes an engine in the model repository."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from openai_bls.builder.build import build, remove
from openai_bls.builder.engine_build import Wanted, choose_engine, engine_build, planner, refuse_foreign
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.lora import read_lora_options
from openai_bls.builder.source.hub import is_gguf, require_utf8
from openai_bls.commands.main import REFUSED
from openai_bls.commands.options import repository
from openai_bls.core.machine.nvidia_smi import visible_gpus
from openai_bls.core.manifest import BuildError, EngineSetupError
from openai_bls.engines import registry
from openai_bls.launcher import workspace

STOPPED = 130
"""Exit code after Ctrl-C or SIGTERM."""


class Removal(NamedTuple):
    """Command line with --remove."""

    model_repository: Path
    name: str


class DryRun(NamedTuple):
    """Command line with --dry-run."""

    options: BuildOptions
    gpu: str | None
    """GPU of the estimate; None is the installed one, else a common one."""
    gpu_memory: str | None = None
    """Memory of a GPU that may be in no table."""


class Build(NamedTuple):
    """Command line of a build."""

    options: BuildOptions
    reason: str
    """Reason for this engine, where the command line leaves it open; else empty."""


def wanted(given: argparse.Namespace) -> Build | DryRun | Removal:
    """Task of a command line.

    Raises:
        BuildError: options that have no meaning together.
    """
    parser: argparse.ArgumentParser = given.parser
    folder = repository(given)
    options = {name: value for name, value in vars(given).items() if name not in ("parser", "words", "announce")}
    if "remove" in options:
        others = [name for name in options if name not in ("remove", "model_repository")]
        if others:
            parser.error(f"--remove builds nothing: --{others[0].replace('_', '-')} has no meaning with it")
        return Removal(folder, options["remove"])
    for option in ("name", "revision"):
        if options.get(option) == "":
            parser.error(f"--{option.replace('_', '-')} is empty")
    dry_run = options.pop("dry_run", False)
    gpu, gpu_memory = (options.pop(name, None) for name in ("gpu", "gpu_memory"))
    if (gpu or gpu_memory) and not dry_run:
        parser.error("--gpu and --gpu-memory are for --dry-run: an engine is built for the GPU that is there")
    model = options.setdefault("model", str(workspace.demo_checkpoint()))
    engine, reason = _engine(options, dry_run=dry_run)
    refuse_foreign(engine, options)
    build = engine_build(engine)
    own = None if build.read_options is None else build.read_options()(options)
    asked = BuildOptions(
        model=model,
        model_repository=folder,
        revision=options.get("revision", ""),
        name=options.get("name", ""),
        engine=engine,
        dtype=options.get("dtype", "auto"),
        max_model_len=options.get("max_seq_len"),
        max_batch_size=options.get("max_batch_size"),
        max_images=options.get("max_images"),
        max_tokens_in_kv_cache=options.get("max_tokens_in_kv_cache", 0),
        served_model_name=options.get("served_model_name"),
        trust_remote_code=options.get("trust_remote_code", False),
        self_test=options.get("self_test", True),
        force=options.get("force", False),
        lora=read_lora_options(options),
        own=own,
    )
    return DryRun(asked, gpu, gpu_memory) if dry_run else Build(asked, reason)


def _engine(options: Mapping[str, Any], *, dry_run: bool) -> tuple[str, str]:
    """The engine that is asked for, and why if that is left open."""
    asked: str = options.get("engine", "auto")
    if dry_run:
        return planner(asked)[0], ""
    if asked != "auto":
        return asked, ""
    return choose_engine(Wanted(is_gguf(options["model"]), options, [gpu.name for gpu in visible_gpus()]))


def dry_run(wanted: DryRun) -> tuple[str, int]:
    """Plan of a build in words, and the exit status: 1 if it cannot work."""
    plan = planner(wanted.options.engine)[1].plan
    assert plan is not None
    return plan()(wanted.options, wanted.gpu, wanted.gpu_memory)


def as_typed(text: str, parser: argparse.ArgumentParser, arguments: Sequence[str]) -> str:
    """`text`, where options of `parser` that have several names go by the one that was typed."""
    typed = {argument.partition("=")[0] for argument in arguments}
    for action in parser._actions:
        for name in typed.intersection(action.option_strings):
            others = "|".join(re.escape(other) for other in action.option_strings)
            text = name.join(re.split(rf"(?<![\w-])(?:{others})(?![\w-])", text))
    return text


def run(given: argparse.Namespace) -> int:
    """Build, plan or remove; returns the exit status."""
    parser: argparse.ArgumentParser = given.parser

    def typed(text: str) -> str:
        return as_typed(text, parser, given.words)

    with _stopped_by_signals():
        try:
            task = wanted(given)
            if isinstance(task, Removal):
                remove(task.model_repository, task.name, _report)
            elif isinstance(task, DryRun):
                text, status = dry_run(task)
                print(typed(text))
                return status
            else:
                if task.reason:
                    _report(task.reason)
                _make_ready(task.options)
                build(task.options, lambda line: _report(typed(line)))
                if getattr(given, "announce", True):
                    _report(f"serve it: {serve_command(task.options.model_repository)}")
        except EngineSetupError as error:
            print(f"{parser.prog}: error: {typed(str(error))}", file=sys.stderr)
            return REFUSED
        except KeyboardInterrupt:
            print(f"{parser.prog}: stopped; the engine that was there is still there", file=sys.stderr)
            return STOPPED
    return 0


def _make_ready(options: BuildOptions) -> None:
    """Packages for the engine, and a model repository around it.

    Raises:
        BuildError: there are no such packages, or the repository's path is not UTF-8.
        LaunchError: the repository cannot be written.
    """
    problem = registry.plugin(options.engine).problem
    if problem is not None and (said := problem()()):
        raise BuildError(said)
    folder = options.model_repository
    require_utf8(str(folder.resolve()))
    if workspace.is_vacant(folder) or (workspace.is_recorded(folder) and not workspace.is_current(folder)):
        _report(f"model repository: {folder}")
        workspace.update(folder, _report)


def serve_command(folder: Path) -> str:
    """Command that serves the repository `folder`."""
    program = Path(sys.executable).with_name("openai-bls")
    words = [str(program)] if program.is_file() else [sys.executable, "-m", "openai_bls"]
    if Path(words[0]).is_relative_to(Path.cwd()):
        words[0] = os.path.relpath(words[0])
    words.append("serve")
    if folder.absolute() != workspace.default_repository(os.environ).absolute():
        words += ["--model-repository", str(folder)]
    return shlex.join(words)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a build as Ctrl-C does; once one has come, no other disturbs the clearing up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before: dict[int, Any] = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(line: str) -> None:
    print(f"build: {line}", flush=True)
