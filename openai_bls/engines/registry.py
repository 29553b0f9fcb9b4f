"""Registry of engines: the plug-ins of the distributions that are installed, and the null engine.

The manifest says which engine a version folder holds; `OPENAI_BLS_ENGINE_ENGINE` may say another. An engine's process
may run in an interpreter that has none of the distributions installed: it finds the plug-ins by a variable instead.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.manifest import EngineLoadError, Manifest, load_manifest
from openai_bls.core.nearest import meant_or_known
from openai_bls.core.settings import EngineSettings, wrong_values
from openai_bls.engines.plugin import GROUP, EnginePlugin, Lazy

VARIABLE = "OPENAI_BLS_PLUGINS"
"""Environment variable of an engine's process: a JSON object, name → entry point and folder of its package
(`transport.engine_process.bootstrap`)."""

_NULL = "null"


class _Entry(NamedTuple):
    """Entry point of a plug-in."""

    value: str
    """`package.module:name`."""
    origin: str
    """Distribution or variable that names it, for a message."""


@functools.cache
def _entries() -> dict[str, _Entry]:
    passed = os.environ.get(VARIABLE)
    if passed is not None:
        # Both sides of an engine's process are of one release, whatever this interpreter has installed.
        given = [(name, _Entry(value, VARIABLE)) for name, (value, _) in json.loads(passed).items()]
    else:
        given = [
            (point.name, _Entry(point.value, point.dist.name if point.dist is not None else "a distribution"))
            for point in importlib.metadata.entry_points(group=GROUP)
        ]
    found: dict[str, _Entry] = {}
    for name, entry in [*sorted(given), (_NULL, _Entry("openai_bls.engines.null.plugin:PLUGIN", "openai_bls"))]:
        known = found.setdefault(name, entry)
        if known.value != entry.value:
            raise EngineLoadError(
                f"the engine {name} is in two distributions, {known.origin} ({known.value}) and {entry.origin} "
                f"({entry.value}): uninstall one"
            )
    return found


def names() -> tuple[str, ...]:
    """Names of the engines that are installed; their plug-ins are not imported."""
    return tuple(_entries())


@functools.cache
def plugin(name: str) -> EnginePlugin:
    """The plug-in of an engine.

    Raises:
        EngineLoadError: there is none of that name, or it cannot be imported; one sentence.
    """
    entry = _entries().get(name)
    if entry is None:
        raise EngineLoadError(f"there is no engine {name!r} here; installed are {', '.join(names())}")
    try:
        found = Lazy[object](entry.value)()
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineLoadError(f"the engine {name} of {entry.origin} cannot be imported: {error}") from None
    if not isinstance(found, EnginePlugin) or found.name != name:
        raise EngineLoadError(f"{entry.value} of {entry.origin} is not the plug-in of an engine {name}")
    return found


def plugins() -> list[EnginePlugin]:
    """Plug-ins of all engines that are installed.

    Raises:
        EngineLoadError: one cannot be imported.
    """
    return [plugin(name) for name in names()]


def passed_on() -> str:
    """Value of `VARIABLE` for a process of an interpreter without the distributions."""
    return json.dumps(
        {name: (entry.value, _folder(entry.value)) for name, entry in _entries().items() if name != _NULL}
    )


def _folder(value: str) -> str:
    """Folder of the top-level package of an entry point; empty if it is not there."""
    spec = importlib.util.find_spec(value.partition(":")[0].partition(".")[0])
    return str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else ""


def parse_options(overrides: Mapping[str, str]) -> tuple[str, dict[str, msgspec.Struct]]:
    """The engine asked for, "auto" by default, and the options of every engine that has some.

    Raises:
        EngineLoadError: an unknown name or a bad value, also of an engine that is not asked for.
    """
    types = {one.name: one.options() for one in plugins() if one.options is not None}
    known = {"engine"}.union(*(options.__struct_fields__ for options in types.values()))
    for name in overrides:
        if name not in known:
            raise EngineLoadError(f"unknown engine setting {name!r}; {meant_or_known(name, sorted(known))}")
    wanted = overrides.get("engine", "auto")
    # Those without options, too.
    if wanted not in ("auto", *names()):
        raise EngineLoadError(f"bad engine setting: engine is {wanted!r}; {meant_or_known(wanted, ('auto', *names()))}")
    found: dict[str, msgspec.Struct] = {}
    for engine, options in types.items():
        own = plugin(engine).overridden(overrides)
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
    load = chosen.plugin.load()
    return load(*arguments) if chosen.options is None else load(*arguments, chosen.options)


def run_headless(version_dir: Path, overrides: Mapping[str, str], settings: EngineSettings) -> NoReturn:
    """Run the workers of an engine over several machines on one that is not the first, and end this process with it.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    chosen = _choose(version_dir, overrides)
    if chosen.plugin.run_headless is None:
        able = ", ".join(one.name for one in plugins() if one.run_headless is not None) or "none that is installed"
        raise EngineLoadError(
            f"--headless is for engines over several machines ({able}), and this one is {chosen.plugin.name}"
        )
    chosen.plugin.run_headless()(version_dir, chosen.manifest, settings, chosen.options)


class _Choice(NamedTuple):
    """The engine of a version folder."""

    plugin: EnginePlugin
    manifest: Manifest | None
    options: msgspec.Struct | None


def _choose(version_dir: Path, overrides: Mapping[str, str]) -> _Choice:
    wanted, options = parse_options(overrides)
    manifest = None
    try:
        manifest = load_manifest(version_dir)
    except EngineLoadError:
        if wanted == "auto" or plugin(wanted).needs_manifest:
            raise
    kind = manifest.engine if manifest is not None and wanted == "auto" else wanted
    if kind not in names():
        raise EngineLoadError(f"engine.json names the engine {kind!r}; {meant_or_known(kind, names())}")
    chosen = plugin(kind)
    _require_own_options(chosen, overrides)
    if manifest is not None:
        if manifest.engine != kind:
            # The record of another engine means nothing to this one.
            manifest = msgspec.structs.replace(manifest, record={})
        if chosen.record is not None:
            chosen.record().of(manifest)
    return _Choice(chosen, manifest, options.get(kind))


def _require_own_options(chosen: EnginePlugin, overrides: Mapping[str, str]) -> None:
    """Raise `EngineLoadError` for an option that only another engine has."""
    if chosen.ignores_foreign_options:
        return
    own = chosen.overridden(overrides)
    for name in overrides:
        if name != "engine" and name not in own:
            raise EngineLoadError(
                f"OPENAI_BLS_ENGINE_{name.upper()} is of another engine than {chosen.name}, whose settings stand in "
                f"{chosen.options_place}"
            )
