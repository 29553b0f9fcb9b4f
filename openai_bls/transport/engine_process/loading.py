"""Loading of an engine where the settings say: in this process, in one that is started, or in one that is there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.manifest import EngineLoadError, load_manifest
from openai_bls.core.processes.process_tree import interpreter
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import registry
from openai_bls.engines.load_memory import load_memory
from openai_bls.engines.plugin import LoadMemory
from openai_bls.engines.registry import create_engine
from openai_bls.transport.engine_process import address, load_turns
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.source import EngineSource, RemoteProcess, StartedProcess


class LoadedEngine(NamedTuple):
    """An engine that is ready."""

    engine: Engine
    hand_over: Callable[[socket.socket], None] | None
    """Takes connections of `openai_bls` instances to the engine's own process; None for an engine of this process."""


def load_engine(
    version_dir: Path, on_step: StepListener, overrides: Mapping[str, str], settings: EngineSettings
) -> LoadedEngine:
    """The engine that lies in `version_dir`, or at the address that the settings name, ready.

    Args:
        version_dir: a version folder of the model `tensorrt_llm`.
        on_step: the listener.
        overrides: options of the engine from the environment, as strings.
        settings: settings of the model.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    source = _source(version_dir, overrides, settings)
    # An engine elsewhere has its memory.
    is_remote = isinstance(source, RemoteProcess)
    memory = LoadMemory(0) if is_remote else load_memory(version_dir, overrides, settings)
    with load_turns.turn(os.getppid(), version_dir.absolute().parent.name, memory):
        if source is None:
            return LoadedEngine(create_engine(version_dir, on_step, overrides, settings), None)
        engine = ProcessEngine(source, on_step, settings.engine_silence_timeout_s)
    return LoadedEngine(engine, engine.adopt)


def arguments(version_dir: Path, overrides: Mapping[str, str], settings: EngineSettings) -> list[str]:
    """Command line of an engine's process that is started here, without its socket."""
    words = ["--model-dir", str(version_dir.absolute())]
    default = EngineSettings()
    for name in EngineSettings.__struct_fields__:
        value = getattr(settings, name)
        if not name.startswith("engine_") and value != getattr(default, name):
            words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    for name, text in overrides.items():
        words += ["--option", f"{name}={text}"]
    return words


def _source(version_dir: Path, overrides: Mapping[str, str], settings: EngineSettings) -> EngineSource | None:
    if settings.engine_address:
        if settings.engine_python:
            raise EngineLoadError(
                "engine_python and engine_address exclude each other: one starts an engine's process,"
                " the other names one that is there"
            )
        return _remote(settings, overrides)
    python = settings.engine_python or _engine_python(version_dir)
    if not python:
        return None
    return StartedProcess(python, arguments(version_dir, overrides, settings), settings.engine_restarts)


def _remote(settings: EngineSettings, overrides: Mapping[str, str]) -> RemoteProcess:
    place = address.parse(settings.engine_address)
    other = msgspec.structs.replace(settings, lora_watch_dir="", exclude_input_in_output=True)
    ignored = [word for word in arguments(Path("/"), overrides, other)[2:] if "=" in word]
    if ignored:
        raise EngineLoadError(
            f"{ignored[0].partition('=')[0]} is for the engine's process, which {place} has: give it to that one's "
            "command, `openai-bls engine`"
        )
    return RemoteProcess(place, settings.engine_connect_timeout_s)


def _engine_python(version_dir: Path) -> str:
    """The interpreter in engine.json, or this one for an engine that has a separate process anyway; else empty, also
    without an engine.json, which only some engines need."""
    try:
        manifest = load_manifest(version_dir)
    except EngineLoadError:
        return ""
    known = manifest.engine in registry.names()
    return manifest.engine_python or (interpreter() if known and registry.plugin(manifest.engine).own_process else "")
