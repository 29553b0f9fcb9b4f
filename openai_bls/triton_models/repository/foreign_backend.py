"""Triton backends that run engines in place of our own model.py, as the plug-ins of engines name them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from openai_bls.core import config_pbtxt
from openai_bls.core.manifest import Manifest
from openai_bls.core.settings import EngineSettings, OfficialSettings
from openai_bls.engines.plugin import Lazy
from openai_bls.pipeline.models.registry import EngineClient
from openai_bls.triton_models.tensors.declaration import Model, Queue


class ForeignClient(EngineClient, Protocol):
    """Client of an engine that a foreign backend runs."""

    async def close(self) -> None:
        """Hang up."""


@dataclass(frozen=True, kw_only=True)
class ForeignBackend:
    """Triton backend that has the official tensors only, and is reached through Triton's gRPC port."""

    name: str
    """Name in config.pbtxt."""
    settings: type[OfficialSettings]
    """Parameters of config.pbtxt."""
    model: Callable[[Any, int, Queue | None, str], Model]
    """Declaration of a model, of `settings`, max_batch_size, Triton's queue and the model's name; raises
    `EngineLoadError`."""
    own_paths: Callable[[Path, Mapping[str, str]], dict[str, str]]
    """Parameters of the model in a folder that name a path elsewhere although it has its own: name → its own path."""
    client: Lazy[Callable[..., ForeignClient]]
    """Client of `openai_bls`, of the model's name and folder, the address, and a function that takes the EngineInfo."""
    runs: Callable[[Manifest], bool]
    """Whether it runs the engine of a manifest, of the kind whose plug-in names it."""
    without: Callable[[Manifest], Manifest]
    """The manifest with which the engine's loader loads it outside of Triton."""

    def engine_settings(self, given: OfficialSettings) -> EngineSettings:
        """Settings that the engine's loader has too."""
        return EngineSettings(**{name: getattr(given, name) for name in OfficialSettings.__struct_fields__})


@functools.cache
def foreign_backends() -> dict[str, ForeignBackend]:
    """Backends of the engines that are installed, by their names in config.pbtxt."""
    from openai_bls.engines import registry

    found = [one.triton_backend() for one in registry.plugins() if one.triton_backend is not None]
    return {backend.name: backend for backend in found if isinstance(backend, ForeignBackend)}


def foreign_backend_of(model: Path) -> ForeignBackend:
    """The backend of the model in a folder; of a model of any other backend the one that is installed, which
    `engine_transport` may ask for.

    Raises:
        LookupError: no engine that is installed has one; the message is part of a sentence.
    """
    known = foreign_backends()
    with suppress(OSError, ValueError):
        named = known.get(config_pbtxt.text(config_pbtxt.read(model / "config.pbtxt"), "backend"))
        if named is not None:
            return named
    if not known:
        raise LookupError("no engine that is installed has a backend of Triton's")
    return next(iter(known.values()))


def foreign_backend(manifest: Manifest) -> ForeignBackend | None:
    """The backend that runs the engine of `manifest`; None for our own model.py."""
    from openai_bls.engines import registry

    if manifest.engine not in registry.names():
        return None
    part = registry.plugin(manifest.engine).triton_backend
    backend = None if part is None else part()
    return backend if isinstance(backend, ForeignBackend) and backend.runs(manifest) else None
