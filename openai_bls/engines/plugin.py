"""Plug-in of an engine: what the server asks of an engine, by one object of its distribution.

A distribution names the object in its pyproject.toml, and `engines.registry` finds it::

    [project.entry-points."openai_bls.engines"]
    toy = "openai_bls_toy.plugin:PLUGIN"

The module of the object imports nothing heavy: each part is `Lazy`, imported when it is first asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NamedTuple, NoReturn, TypeVar, cast

import msgspec

from openai_bls.core.engine import Engine
from openai_bls.core.manifest import EngineRecord, Manifest
from openai_bls.core.settings import EngineSettings

GROUP = "openai_bls.engines"
"""Group of entry points that name plug-ins."""

PartT = TypeVar("PartT")


class Lazy(Generic[PartT]):
    """Part of a plug-in that is imported by its first call.

    Args:
        path: `package.module:name`.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> PartT:
        """The part itself."""
        return cast(PartT, pkgutil.resolve_name(self.path))


class LoadMemory(NamedTuple):
    """Memory that an engine takes while it loads."""

    host_bytes: int
    """Bytes of the machine's memory at most; an estimate."""
    on_gpu: bool = False
    """Whether the size of its KV cache is a share of the free GPU memory."""


class LoadRequest(NamedTuple):
    """Load whose memory is estimated."""

    version_dir: Path
    manifest: Manifest
    options: msgspec.Struct | None
    """Start-up options of the engine."""
    settings: EngineSettings
    gpu: bool
    """Whether this machine has a GPU that the process may see."""


class LoadStep(NamedTuple):
    """A step of a load that has begun or goes on."""

    number: int
    """Place in the order of a load; 0 begins one."""
    name: str
    parts: str
    """Parts that are done and all parts, `3/8`; empty if the line does not tell."""


class Finding(msgspec.Struct, frozen=True):
    """Outcome of one check of `openai-bls doctor`."""

    name: str
    status: Literal["ok", "note", "failed"]
    """`note`: it works, and could be better."""
    detail: str


@dataclass(frozen=True, kw_only=True)
class EnginePlugin:
    """An engine as the server knows it. Only the name, the title and the loader are needed."""

    name: str
    """Name in engine.json, for --engine and in messages; the entry point has the same."""
    title: str
    """Name for people, e.g. `vLLM`."""
    load: Lazy[Callable[..., Engine]]
    """`load(version_dir, manifest, settings, on_step, options)`, without `options` if there are none: the engine that
    lies in `version_dir`, ready. Raises `EngineLoadError`, one sentence that says what is missing and what to do."""
    options: Lazy[type[msgspec.Struct]] | None = None
    """Struct of start-up options, which the environment may set over the manifest. None: its settings stand in
    config.pbtxt."""
    options_place: str = "the model's config.pbtxt"
    """Place of the engine's settings, for the refusal of another engine's option."""
    ignores_foreign_options: bool = False
    """Options of other engines are allowed, and have no effect."""
    record: Lazy[type[EngineRecord]] | None = None
    """Type of the manifest's record; None has none."""
    own_process: bool = False
    """Separate process, also where the manifest names no interpreter."""
    needs_manifest: bool = True
    """An engine that was asked for by name is an error without a manifest in its version folder; else `load` gets
    None."""
    problem: Lazy[Callable[[], str]] | None = None
    """Why the engine cannot run in this Python, as a sentence; empty if it can."""
    check_start: Lazy[Callable[[Manifest, str], str]] | None = None
    """Check before a server is started, with the manifest and the interpreter (empty: this one): the program that will
    run the engine, for a message. Raises `EngineLoadError` if none can. Takes the place of `problem`."""
    check_settings: Lazy[Callable[[Manifest, EngineSettings], None]] | None = None
    """Check of config.pbtxt for the engine of a manifest; raises `EngineLoadError`."""
    load_memory: Lazy[Callable[[LoadRequest], LoadMemory]] | None = None
    """Estimate of the memory that a load takes; None takes none worth waiting for."""
    load_step: Lazy[Callable[[str], LoadStep | None]] | None = None
    """Step of a load that a line of the engine's log tells of."""
    run_headless: Lazy[Callable[..., NoReturn]] | None = None
    """Runs the workers of a machine that is not the first, with the arguments of `load` but `on_step`."""
    jobs: Lazy[object] | None = None
    """`launcher.jobs.ServerJobs`: options of `serve` about several ranks, and the jobs that start them."""
    triton_backend: Lazy[object] | None = None
    """`triton_models.repository.foreign_backend.ForeignBackend` that may run the engine in place of our model.py."""
    findings: Lazy[Callable[[], list[Finding]]] | None = None
    """Findings of `openai-bls doctor` about the engine's packages on this machine."""
    build: Lazy[object] | None = None
    """`builder.engine_build.EngineBuild`: recipe and options of a build; None: nothing builds it."""
    environment: Lazy[object] | None = None
    """`builder.engine_environment.EngineEnvironment` that `openai-bls install-engine` makes; None: none is made."""

    def overridden(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """Options of `overrides` that are this engine's."""
        own = () if self.options is None else self.options().__struct_fields__
        return {name: value for name, value in overrides.items() if name in own}
