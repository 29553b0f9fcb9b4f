"""Environment of an engine whose packages are not Triton's Python's, as its plug-in describes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from openai_bls.engines import registry
from openai_bls.engines.plugin import Lazy


class InstallOptions(msgspec.Struct, frozen=True):
    """Options of `openai-bls install-engine`."""

    folder: Path
    """Folder of the environment."""
    device: Literal["cpu", "gpu"]
    version: str = ""
    """Version of the engine's package; empty is the one that is tested."""
    python: str = sys.executable
    """Interpreter that the environment is made with."""
    dry_run: bool = False
    """Say what would be installed, and install nothing."""
    torch_index_url: str = ""
    """Further index of packages, for torch's builds for CPUs; empty is pip's own alone."""


@dataclass(frozen=True, kw_only=True)
class EngineEnvironment:
    """Environment that `openai-bls install-engine` makes."""

    description: str
    """Text on the environment and the disk that it takes, for --help."""
    default_folder: Lazy[Callable[[Path], Path]]
    """Folder of the environment for a model repository, where a build looks for it."""
    install: Lazy[Callable[[InstallOptions, Callable[[str], None]], object]]
    """Makes the environment, or what is left to do of it; raises `EngineSetupError`."""


def engine_environments() -> dict[str, EngineEnvironment]:
    """Environments of the engines that are installed, by the engines' names."""
    found = {one.name: one.environment() for one in registry.plugins() if one.environment is not None}
    return {name: made for name, made in found.items() if isinstance(made, EngineEnvironment)}
