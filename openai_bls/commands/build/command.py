"""Command `build`: a Hugging Face checkpoint becomes an engine in the model repository."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, get_args

from openai_bls.builder.build import build, remove
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.llama_cpp import refuse_foreign
from openai_bls.builder.options.lora import read_lora_options
from openai_bls.builder.options.tensorrt_llm import read_options, refuse_meaningless
from openai_bls.builder.options.vllm import VllmOptions, read_vllm_options, refuse_vllm_only
from openai_bls.builder.source.hub import fetch_config, is_gguf, local_path, require_utf8
from openai_bls.commands.main import REFUSED
from openai_bls.commands.options import repository
from openai_bls.core.machine.nvidia_smi import visible_gpus
from openai_bls.core.manifest import BuildError, EngineSetupError
from openai_bls.embedded.record import Quantization
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
    gpu = [options.get(name) for name in ("gpu", "gpu_memory")]
    if any(gpu) and not dry_run:
        parser.error("--gpu and --gpu-memory are for --dry-run: an engine is built for the GPU that is there")
    model = options.get("model", str(workspace.demo_checkpoint()))
    engine, reason = choose_engine(options.get("engine", "auto"), dry_run=dry_run)
    if reason and is_gguf(model):
        engine, reason = "llama_cpp", "engine llama_cpp: the model is a GGUF file"
    if engine == "llama_cpp":
        refuse_foreign(options)
    if engine == "vllm" and dry_run:
        raise BuildError("--dry-run plans TensorRT-LLM engines: the engine vllm has nothing to plan")
    vllm = read_vllm_options(options) if engine == "vllm" else VllmOptions()
    refuse_vllm_only(options, engine)
    quant = _embedded_quant(options.pop("quant", "")) if engine == "transformers" else ""
    tensorrt_llm = read_options(options)
    if engine == "transformers" and tensorrt_llm.tensor_parallel_size > 1:
        raise _one_gpu(tensorrt_llm.tensor_parallel_size, model)
    lora = read_lora_options(options)
    refuse_meaningless(options, engine, tensorrt_llm.flow, tensorrt_llm.backend)
    asked = BuildOptions(
        model=model,
        model_repository=folder,
        revision=options.get("revision", ""),
        name=options.get("name", ""),
        engine=engine,
        dtype=options.get("dtype", "auto"),
        quant=quant,
        max_model_len=options.get("max_seq_len"),
        max_batch_size=options.get("max_batch_size"),
        max_images=options.get("max_images"),
        max_tokens_in_kv_cache=0 if engine == "tensorrt_llm" else options.get("max_tokens_in_kv_cache", 0),
        served_model_name=options.get("served_model_name"),
        trust_remote_code=options.get("trust_remote_code", False),
        self_test=options.get("self_test", True),
        force=options.get("force", False),
        lora=lora,
        tensorrt_llm=tensorrt_llm,
        vllm=vllm,
    )
    return DryRun(asked, *gpu) if dry_run else Build(asked, reason)


def _one_gpu(tp_size: int, model: str) -> BuildError:
    """Refusal of --tp-size with the embedded engine."""
    line = shlex.join(["openai-bls", "build", "--engine", "vllm", "--tp-size", str(tp_size), "--model", model])
    return BuildError(
        f"--tp-size {tp_size}: the embedded engine runs on one GPU: run `{line}`, or the same with --engine "
        "tensorrt_llm where TensorRT-LLM is installed (docs/guides/several-gpus.md)"
    )


def _embedded_quant(asked: str) -> Quantization:
    if asked.lower() not in get_args(Quantization):
        raise BuildError(
            f"--quant {asked} is for --engine tensorrt_llm and --engine vllm: the engine transformers has fp8"
        )
    quant: Quantization = asked.lower()  # type: ignore[assignment]  # as was just seen
    return quant


def choose_engine(asked: str, *, dry_run: bool = False) -> tuple[str, str]:
    """The engine that `--engine auto` stands for, and why; --dry-run plans TensorRT-LLM whatever is installed."""
    if asked != "auto":
        return asked, ""
    if dry_run:
        return "tensorrt_llm", ""
    names: dict[str, str] = {"TensorRT-LLM": "tensorrt_llm", "vLLM": "vllm"}
    there = {name: kind for name, kind in names.items() if importlib.util.find_spec(kind) is not None}
    if not there:
        return "transformers", "engine transformers: TensorRT-LLM is not installed"
    name, kind = next(iter(there.items()))
    installed = visible_gpus()
    if not installed:
        return "transformers", f"engine transformers: {name} is installed, but there is no GPU"
    return kind, f"engine {kind}: it is installed, and there is a GPU ({installed[0].name})"


def dry_run(wanted: DryRun) -> tuple[str, int]:
    """Plan of a build in words, and the exit status: 1 if it cannot work."""
    from openai_bls.builder.tensorrt_llm.building import request_of
    from openai_bls.builder.tensorrt_llm.plan import planning
    from openai_bls.builder.tensorrt_llm.survey import ask_installed

    options = wanted.options
    if options.engine != "tensorrt_llm":
        raise BuildError(f"--dry-run plans TensorRT-LLM engines: the engine {options.engine} has nothing to plan")
    found = ask_installed(options.tensorrt_llm.extra_llm_api_options)
    installed = visible_gpus()
    gpu = planning.gpu_for(wanted.gpu, wanted.gpu_memory, installed)
    config, source = fetch_config(options.model, options.revision), local_path(options.model)
    request = request_of(options, config, source, found.architectures, found.arguments_refusal)
    head = f"TensorRT-LLM {found.about}\n"
    if wanted.gpu is wanted.gpu_memory is None and not installed:
        head += f"there is no GPU here: estimated for {gpu.name} (--gpu NAME for another)\n"
    try:
        plan = planning.plan(request, found.version, gpu)
    except EngineSetupError as error:
        # There is nothing to estimate, and the reason stands where the others do.
        return head + planning.sentences([str(error)], ()).lstrip("\n"), 1
    return head + planning.described(request, plan), 1 if plan.problems else 0


def as_typed(text: str, parser: argparse.ArgumentParser, arguments: Sequence[str]) -> str:
    """`text`, where options of `parser` that have several names go by the one that was typed."""
    typed = {argument.partition("=")[0] for argument in arguments}
    for action in parser._actions:
        for name in typed.intersection(action.option_strings):
            others = "|".join(re.escape(other) for other in action.option_strings)
            text = re.sub(rf"(?<![\w-])(?:{others})(?![\w-])", name, text)
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
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if options.engine == "transformers" and missing:
        raise BuildError(
            f"the embedded engine needs {' and '.join(missing)}, which {sys.executable} does not have: run `pip install"
            " 'openai_bls[engine]'`"
        )
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
