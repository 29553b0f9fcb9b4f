"""Registry of engines: each is a module with a `load` function, its start-up options, and one entry here.

The manifest says which engine a version folder holds; `OPENAI_BLS_ENGINE_ENGINE` may say another. An entry is names
that are imported when they are needed, so that an engine may be a package above this one, as `embedded` is.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

import msgspec

from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.manifest import EngineLoadError, Manifest, load_manifest
from openai_bls.core.settings import EngineSettings, wrong_values


class EngineEntry(NamedTuple):
    """One engine."""

    module: str
    """Module with `load(version_dir, manifest, settings, on_step, options)`; without `options` if it has none."""
    options_name: str = ""
    """`module:Struct` of start-up options, which the environment may set over the manifest. Empty: its settings stand
    in config.pbtxt."""
    own_process: bool = False
    """Separate process, also where the manifest names no interpreter."""
    needs_manifest: bool = True
    """An engine that was asked for by name is an error without a manifest in its version folder; else `load` gets
    None."""

    @property
    def options(self) -> type[msgspec.Struct] | None:
        """Struct of start-up options; None without any."""
        return pkgutil.resolve_name(self.options_name) if self.options_name else None


ENGINES: dict[str, EngineEntry] = {
    "transformers": EngineEntry("openai_bls.embedded.loading", "openai_bls.embedded.options:EngineOptions"),
    "llama_cpp": EngineEntry(
        "openai_bls.engines.llama_cpp.loading", "openai_bls.engines.llama_cpp.options:LlamaCppOptions", own_process=True
    ),
    "vllm": EngineEntry("openai_bls.engines.vllm.loading", "openai_bls.engines.vllm.options:VllmOptions"),
    "tensorrt_llm": EngineEntry("openai_bls.engines.tensorrt_llm.loading"),
    "null": EngineEntry(
        "openai_bls.engines.null.loading", "openai_bls.engines.null.loading:NullOptions", needs_manifest=False
    ),
}
"""`Manifest.engine` → its entry."""


_WHERE = {
    "vllm": "--extra-engine-args of the build",
    "llama_cpp": "docs/reference/settings.md",
}
"""Kind of engine → where its options stand, for a message."""


def parse_options(overrides: Mapping[str, str]) -> tuple[str, dict[str, msgspec.Struct]]:
    """The engine asked for, "auto" by default, and the options of every engine that has some.

    Raises:
        EngineLoadError: an unknown name or a bad value, also of an engine that is not asked for.
    """
    types = {name: options for name, entry in ENGINES.items() if (options := entry.options) is not None}
    known = {"engine"}.union(*(options.__struct_fields__ for options in types.values()))
    for name in overrides:
        if name not in known:
            raise EngineLoadError(f"unknown engine setting {name!r}; known are {', '.join(sorted(known))}")
    wanted = overrides.get("engine", "auto")
    if wanted not in ("auto", *types):
        raise EngineLoadError(f"bad engine setting: engine is {wanted!r}, not one of auto, {', '.join(types)}")
    found: dict[str, msgspec.Struct] = {}
    for engine, options in types.items():
        own = {name: value for name, value in overrides.items() if name in options.__struct_fields__}
        try:
            found[engine] = msgspec.convert(own, options, strict=False)
        except msgspec.ValidationError as error:
            sources = {name: f"OPENAI_BLS_ENGINE_{name.upper()}" for name in own}
            raise EngineLoadError(f"bad engine setting: {wrong_values(options, own, sources) or error}") from None
    return wanted, found


def create_engine(
    version_dir: Path,
    on_step: StepListener,
    overrides: Mapping[str, str] | None = None,
    settings: EngineSettings | None = None,
) -> Engine:
    """The engine that lies in `version_dir`, loaded and ready.

    Args:
        version_dir: a version folder of the model `tensorrt_llm`, with `engine.json`.
        on_step: the listener.
        overrides: `engine` and fields of the engines' options, as strings.
        settings: settings of the model.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    chosen = _choose(version_dir, overrides or {})
    arguments = (version_dir, chosen.manifest, settings or EngineSettings(), on_step)
    load = chosen.module.load
    engine: Engine = load(*arguments) if chosen.options is None else load(*arguments, chosen.options)
    return engine


def run_headless(version_dir: Path, overrides: Mapping[str, str], settings: EngineSettings) -> NoReturn:
    """Run the workers of an engine over several machines on one that is not the first, and end this process with it.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    chosen = _choose(version_dir, overrides)
    run = getattr(chosen.module, "run_headless", None)
    if run is None:
        raise EngineLoadError(f"--headless is for engines of vLLM over several machines, and this one is {chosen.kind}")
    run(version_dir, chosen.manifest, settings, chosen.options)
    raise AssertionError("it ends the process")


class _Choice(NamedTuple):
    """The engine of a version folder."""

    kind: str
    module: ModuleType
    manifest: Manifest | None
    options: msgspec.Struct | None


def _choose(version_dir: Path, overrides: Mapping[str, str]) -> _Choice:
    wanted, options = parse_options(overrides)
    manifest = None
    try:
        manifest = load_manifest(version_dir)
    except EngineLoadError:
        if wanted == "auto" or ENGINES[wanted].needs_manifest:
            raise
    kind = manifest.engine if manifest is not None and wanted == "auto" else wanted
    entry = ENGINES.get(kind)
    if entry is None:
        raise EngineLoadError(f"engine.json names the engine {kind!r}; known are {', '.join(ENGINES)}")
    module = importlib.import_module(entry.module)
    _require_own_options(kind, entry, overrides)
    return _Choice(kind, module, manifest, options.get(kind))


def _require_own_options(kind: str, entry: EngineEntry, overrides: Mapping[str, str]) -> None:
    """Raise `EngineLoadError` for an option that an engine of another package does not have.

    The embedded engine and the null engine stand in for each other, so options of one are allowed with the other.
    """
    if kind not in ("llama_cpp", "vllm", "tensorrt_llm"):
        return
    options = entry.options
    own = () if options is None else options.__struct_fields__
    for name in overrides:
        if name != "engine" and name not in own:
            where = _WHERE.get(kind, "the model's config.pbtxt")
            raise EngineLoadError(
                f"OPENAI_BLS_ENGINE_{name.upper()} is of another engine than {kind}, whose settings stand in {where}"
            )
