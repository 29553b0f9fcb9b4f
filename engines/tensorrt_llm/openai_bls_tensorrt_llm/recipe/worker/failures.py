"""Failures of a build: one sentence with a remedy, from the worker's exit code and the end of its log."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from openai_bls.builder.file_errors import free_space
from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.installed.interface import BuildSpec
from openai_bls_tensorrt_llm.recipe.gpus import GIB
from openai_bls_tensorrt_llm.recipe.worker.main import REFUSAL
from openai_bls_tensorrt_llm.recipe.worker.process import KILLED_BASE

_Kind = Literal["host memory", "GPU memory", "architecture", "package", "disk", "version", "network"]

TAIL_LINES = 400
"""Lines of a log's end; a traceback through TensorRT-LLM and MPI is long."""


# Words of Python, PyTorch, TensorRT, TensorRT-LLM, transformers and datasets, the most telling first.
_WORDS: tuple[tuple[_Kind, re.Pattern[str]], ...] = (
    ("disk", re.compile(r"No space left on device|Disk quota exceeded|StorageFull|Errno (28|122)\b")),
    (
        "GPU memory",
        re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"),
    ),
    (
        "GPU memory",
        re.compile(r"Cuda Runtime \(out of memory\)|CUDA runtime error .*out of memory|Error Code \d+: OutOfMemory"),
    ),
    (
        "host memory",
        re.compile(r"\bMemoryError\b|std::bad_alloc|DefaultCPUAllocator|Cannot allocate memory|Errno 12\b"),
    ),
    (
        "version",
        re.compile(r"(serialization|engine plan|version) .*(mismatch|incompatible)|is incompatible with this version"),
    ),
    ("version", re.compile(r"undefined symbol|cannot open shared object file|driver version is insufficient")),
    (
        "network",
        re.compile(
            r"Couldn't (reach|find) .*(Hub|dataset)|DatasetNotFoundError|OfflineModeIsEnabled|LocalEntryNotFound"
        ),
    ),
    (
        "network",
        re.compile(
            r"Max retries exceeded|Temporary failure in name resolution|Name or service not known|ConnectionError"
        ),
    ),
    (
        "network",
        re.compile(r"Network is unreachable|ConnectTimeout|ReadTimeout|Unsupported dataset name|GatedRepoError"),
    ),
    (
        "architecture",
        re.compile(r"not supported in TRT-LLM|[Uu]nsupported (HF )?(model )?architecture|Unknown architecture for"),
    ),
    (
        "architecture",
        re.compile(r"does not recognize this architecture|Unrecognized model in|Unrecognized configuration class"),
    ),
    ("architecture", re.compile(r"does not support AutoConfig|[Uu]nsupported model type")),
    (
        "package",
        re.compile(r"ModuleNotFoundError|No module named|requires the following packages|is not installed|ImportError"),
    ),
)
# Where TensorRT says that it passed over a way for want of memory, and went on.
_HARMLESS = re.compile(r"Skipping tactic|Tactic .*insufficient memory|\[W\]")
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Exceeded|Found|Enabled|Interrupt)\b.*")
_MODULE = re.compile(r"No module named '?([\w.]+)|following packages[^:]*: ([\w, -]+)")
_ARCHITECTURE = re.compile(r"[Aa]rchitecture[^A-Z]*([A-Z]\w+)|model type `?(\w+)")


def classify(code: int, tail: Sequence[str], spec: BuildSpec) -> str:
    """Why a worker failed, in one sentence.

    Args:
        code: exit code, as `process.run_worker` returns it.
        tail: last lines of the log.
        spec: specification of the engine that the worker built.
    """
    refused = next((line.removeprefix(REFUSAL) for line in reversed(tail) if line.startswith(REFUSAL)), None)
    if refused is not None:
        return refused
    lines = [line for line in tail if not _HARMLESS.search(line)]
    # The last exception says more than what was printed before it.
    exceptions = [line for line in lines if _EXCEPTION.match(line.strip())]
    for text in (*reversed(exceptions[-2:]), "\n".join(lines)):
        kind = _kind_of(text)
        if kind is not None:
            return _sentence(kind, text, spec)
    if code == KILLED_BASE + signal.SIGKILL:
        return _sentence("host memory", "", spec)
    if code in (KILLED_BASE + signal.SIGINT, KILLED_BASE + signal.SIGTERM):
        return "the build was told to stop"
    if code > KILLED_BASE:
        return f"the build crashed ({_signal_name(code - KILLED_BASE)})"
    last = exceptions[-1].strip() if exceptions else f"exit code {code}"
    return f"the build failed: {last}"


def require_disk(folder: Path, needed: int) -> None:
    """Raise `BuildError` if `needed` bytes are not free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BuildError(
            f"the disk is too small: the build needs {needed / GIB:.1f} GiB at {folder} and {free / GIB:.1f} GiB are "
            "free: free some, or name another place with --workspace"
        )


def _kind_of(text: str) -> _Kind | None:
    return next((kind for kind, words in _WORDS if words.search(text)), None)


def _sentence(kind: _Kind, text: str, spec: BuildSpec) -> str:
    match kind:
        case "host memory":
            killed = "the build was killed, most likely by the kernel for want of host memory"
            what = "host memory ran out" if text else killed
            said = f"{what}: end other programs, or build on a machine with more"
        case "GPU memory":
            calibration = "a smaller --calib-size, " if spec.quant_algorithm else ""
            said = (
                f"GPU memory ran out: give a larger --tp-size, {calibration}a smaller --max-num-tokens (now "
                f"{spec.max_num_tokens}) or --max-batch-size (now {spec.max_batch_size}), or end what else is on the "
                "GPU"
            )
        case "disk":
            said = f"the disk is full: {free_space(spec.workspace)}; free some, or name another place with --workspace"
        case "architecture":
            name = _first(_ARCHITECTURE, text)
            said = (
                "this TensorRT-LLM does not support the model's architecture"
                f"{f' {name}' if name else ''} in this flow: try the other --flow, or --engine transformers"
            )
        case "package":
            name = _first(_MODULE, text)
            install = f"install it into the Python that builds (python3 -m pip install {name.partition('.')[0]})"
            said = f"the package {name} is missing: {install}" if name else f"a package is missing: {_telling(text)}"
        case "version":
            said = f"versions do not go together: {_telling(text)}"
        case "network":
            option = "--calib-dataset" if spec.quant_algorithm else "--model"
            said = (
                f"the network, or what was to be had from it, is out of reach ({_telling(text)}): give a local "
                f"directory with {option}"
            )
    return said


def _first(pattern: re.Pattern[str], text: str) -> str:
    """The first group of `pattern` that matched in `text`, or nothing."""
    found = pattern.search(text)
    return next((part for part in found.groups() if part), "").strip() if found else ""


def _telling(text: str) -> str:
    """The last line that says what it was."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if _kind_of(line)), text.strip()[:300])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
