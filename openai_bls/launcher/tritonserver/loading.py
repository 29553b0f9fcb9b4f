"""Flags for how a tritonserver loads its models: how many at a time, whether it asks each for its configuration, and
what becomes of it if one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai_bls.core import config_pbtxt
from openai_bls.launcher.tritonserver.command import has_flag
from openai_bls.triton_models.repository.foreign_backend import foreign_backends

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TRITON_THREADS = 4
_THREADS_FLAG = "--model-load-thread-count"
_AUTO_COMPLETE_FLAG = "--disable-auto-complete-config"
EXIT_FLAG = "--exit-on-error"
_READY_FLAG = "--strict-readiness"


def load_flags(models: Sequence[Path], extra: Sequence[str]) -> list[str]:
    """Flags with which all models load side by side.

    Triton loads four at a time, in the order of their names, and first runs each Python model in a separate process
    that completes its config.pbtxt, which is a fifth of the start. That is left out where no model needs it.

    Args:
        models: folders of all models.
        extra: flags of the user, which count.
    """
    flags = []
    if len(models) > _TRITON_THREADS and not has_flag(extra, _THREADS_FLAG):
        flags.append(f"{_THREADS_FLAG}={len(models)}")
    if not has_flag(extra, _AUTO_COMPLETE_FLAG) and all(map(_is_complete, models)):
        flags.append(_AUTO_COMPLETE_FLAG)
    return flags


def failure_flags(engines: Sequence[object], extra: Sequence[str]) -> list[str]:
    """Flags with which a server of several engines stays if one fails to load.

    Args:
        engines: the engines.
        extra: flags of the user, which count.
    """
    if len(engines) < 2 or has_flag(extra, EXIT_FLAG):
        return []
    return [f"{EXIT_FLAG}=false"] + ([] if has_flag(extra, _READY_FLAG) else [f"{_READY_FLAG}=false"])


def _is_complete(model: Path) -> bool:
    """True if nothing would be added to the model's config.pbtxt; a class with a base may inherit what adds to it."""
    try:
        config = config_pbtxt.read(model / "config.pbtxt")
        sources = [path.read_bytes() for path in model.glob("*/model.py")]
    except (OSError, ValueError):
        return False
    if not config.keys() >= {"name", "input", "output"}:
        return False
    backend = config_pbtxt.text(config, "backend")
    if config_pbtxt.text(config, "platform") == "ensemble" or backend in foreign_backends():
        return True
    return backend == "python" and all(
        b"\nclass TritonPythonModel:" in source and b"auto_complete_config" not in source for source in sources
    )
