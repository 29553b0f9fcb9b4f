"""Survey of the installed TensorRT-LLM: version, GPUs and architectures, asked of a separate process."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from openai_bls.core.manifest import BuildError, EngineSetupError
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, Flow, Version
from openai_bls_tensorrt_llm.recipe.plan.planning import NEWEST
from openai_bls_tensorrt_llm.recipe.worker.failures import TAIL_LINES, classify
from openai_bls_tensorrt_llm.recipe.worker.main import Survey
from openai_bls_tensorrt_llm.recipe.worker.process import run_worker


@contextlib.contextmanager
def log_file() -> Iterator[Path]:
    """File for a worker's output, which stays after a failure."""
    handle, name = tempfile.mkstemp(prefix="openai_bls-engine-", suffix=".log")
    os.close(handle)
    path = Path(name)
    try:
        yield path
    except EngineSetupError:
        raise
    except BaseException:
        path.unlink()
        raise
    path.unlink()


class Installed(NamedTuple):
    """TensorRT-LLM to plan for: the installed one, else the newest that is known."""

    version: Version
    architectures: Mapping[Flow, frozenset[str]] | None
    """Architectures by flow; None if it could not be asked."""
    about: str
    """Clause about it."""
    arguments_refusal: str = ""


def ask_installed(arguments: dict[str, Any]) -> Installed:
    """TensorRT-LLM to plan for, and what it says to further arguments of `LLM`."""
    if importlib.util.find_spec("tensorrt_llm") is None:
        return Installed(NEWEST, None, f"is not installed: planned for {NEWEST} and the table of models")
    try:
        found = survey(arguments)
        return Installed(Version.parse(found.version), found.architectures, found.version, found.arguments_refusal)
    except EngineSetupError as error:
        try:
            version = Version.parse(importlib.metadata.version("tensorrt_llm"))
        except (importlib.metadata.PackageNotFoundError, ValueError):
            version = NEWEST
        return Installed(version, None, f"could not be asked: planned for {version} and the table of models ({error})")


def survey(arguments: dict[str, Any]) -> Survey:
    """TensorRT-LLM and GPUs of this machine, and what it says to further arguments of `LLM`.

    Raises:
        BuildError: TensorRT-LLM is not, or cannot be imported.
    """
    if importlib.util.find_spec("tensorrt_llm") is None:
        raise BuildError(
            "TensorRT-LLM is not installed in this Python: build in an image tritonserver:<tag>-trtllm-python-py3, or "
            "with --engine transformers"
        )
    with log_file() as log, tempfile.TemporaryDirectory(prefix="openai_bls-survey-") as folder:
        found, asked = Path(folder) / "survey.json", Path(folder) / "arguments.json"
        asked.write_bytes(msgspec.json.encode(arguments))
        lines: deque[str] = deque(maxlen=TAIL_LINES)
        code = run_worker(["survey", str(found), str(asked)], log, lines.append, lambda: None)
        if code == 0:
            return msgspec.json.decode(found.read_bytes(), type=Survey)
        none = BuildSpec(Path(), Path(), log.parent, 1, 1, 1, 1)
        raise BuildError(f"TensorRT-LLM cannot be used here: {classify(code, lines, none)} (log: {log})")
