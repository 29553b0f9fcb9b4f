"""A prepared engine, loaded in a separate process for the build's self-test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.engine import Engine
from openai_bls.core.manifest import BuildError, EngineLoadError, Manifest, write_manifest
from openai_bls.core.settings import EngineSettings, engine_overrides
from openai_bls.engines.answers import Switch
from openai_bls.transport.engine_process.loading import load_engine

SKIP = "--no-self-test leaves it out"


class LoadedForTest(NamedTuple):
    """An engine, and what it tells its steps."""

    engine: Engine
    switch: Switch


@contextmanager
def loaded(prepared: Prepared, manifest: Manifest, settings: EngineSettings) -> Iterator[LoadedForTest]:
    """The prepared engine as the server will load it; it is closed at the end.

    Args:
        prepared: folders of the engine, which are full.
        manifest: manifest of the engine, without files.
        settings: settings of config.pbtxt.

    Raises:
        BuildError: it does not load; one sentence.
    """
    folder = prepared.work.resolve()
    for name, target in (
        (manifest.checkpoint, prepared.checkpoint),
        ("lora", prepared.lora),
        ("tokenizer", prepared.tokenizers[0]),
    ):
        (folder / name).symlink_to(target.resolve())
    write_manifest(folder, manifest)
    switch = Switch(lambda _: None)
    overrides = {name: value for name, value in engine_overrides(os.environ).items() if name != "engine"}
    try:
        engine = load_engine(folder, switch, overrides, settings).engine
    except EngineLoadError as error:
        raise BuildError(f"the engine does not pass its self-test: {error} ({SKIP})") from None
    try:
        yield LoadedForTest(engine, switch)
    finally:
        engine.close()
