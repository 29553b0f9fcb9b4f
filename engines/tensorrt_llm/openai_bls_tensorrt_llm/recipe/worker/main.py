"""Worker of a build: the process that imports TensorRT-LLM, whose crash does not end the builder.

::

    python -m openai_bls_tensorrt_llm.recipe.worker.main survey <file> <arguments>    write a `Survey` of this machine
    python -m openai_bls_tensorrt_llm.recipe.worker.main build <file>                 build the `BuildSpec` in the file

Its output is the build's log, which `building` reads.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import msgspec

from openai_bls.core.machine.nvidia_smi import InstalledGpu
from openai_bls.core.manifest import EngineLoadError
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, Flow

REFUSED = 3
"""Exit code of a build that cannot be; the log's last line says why, behind `REFUSAL`."""
REFUSAL = "openai_bls: refused: "
STAGE = "openai_bls: stage: "
"""Begins a line of the log that tells the stage, one of `progress.STAGES`."""


class Survey(msgspec.Struct, frozen=True):
    """TensorRT-LLM and GPUs of this machine."""

    version: str
    """Version of TensorRT-LLM, in full."""
    gpus: list[InstalledGpu] = []
    """GPUs that a process sees."""
    architectures: dict[Flow, frozenset[str]] = {}
    """Architectures that each flow has a model class for; empty sets if this version does not say."""
    arguments_refusal: str = ""
    """Refusal of further arguments of `LLM`; empty if there are none, or if the installed classes take them."""


def encode(value: BuildSpec | Survey) -> bytes:
    """JSON of a message."""
    return msgspec.json.encode(value, enc_hook=str)


def decode_spec(data: bytes) -> BuildSpec:
    """A `BuildSpec` from JSON."""
    return msgspec.json.decode(data, type=BuildSpec, dec_hook=_decode_path)


def _decode_path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)


def main(arguments: list[str]) -> int:
    """Survey or build; returns the exit code. What TensorRT-LLM raises ends in a traceback and 1."""
    what, path = arguments[0], Path(arguments[1])
    try:
        _say(f"{STAGE}import")
        from openai_bls_tensorrt_llm.installed.api import installed

        found = installed()
        if what == "survey":
            models: dict[Flow, frozenset[str]] = {flow: found.architectures(flow) for flow in get_args(Flow)}
            values = msgspec.json.decode(Path(arguments[2]).read_bytes())
            path.write_bytes(encode(Survey(found.version_text, found.gpus(), models, found.refusal(values))))
        else:
            spec = decode_spec(path.read_bytes())
            _say(f"{STAGE}load")
            found.build(spec)
    except EngineLoadError as error:
        _say(f"{REFUSAL}{error}")
        return REFUSED
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
