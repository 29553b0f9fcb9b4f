"""Doubles of engines: plug-ins with the answers that a test of the server wants, and nothing to load.

A test that uses the fixture `engine_doubles` has them, as engines of a distribution that is installed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from openai_bls.builder import null
from openai_bls.core.engine import Engine
from openai_bls.core.manifest import EngineLoadError, EngineRecord, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.plugin import EnginePlugin, Lazy, Ranks

NULL_LOADER = Lazy[Callable[..., Engine]]("openai_bls.engines.null.loading:load")
MISSING: list[str] = []
"""Packages that the double needs and does not find."""


class DoubleRecord(EngineRecord, frozen=True, forbid_unknown_fields=True):
    """Ranks of the double."""

    number: int = 1
    by_server: bool = False


def double(number: int = 1, *, by_server: bool = False) -> Manifest:
    """Manifest of the double with ranks."""
    return Manifest("double", "m", 9, 1, 1, record=DoubleRecord(number, by_server).fields())


def ranks(manifest: Manifest) -> Ranks:
    """Ranks of the record."""
    record = DoubleRecord.of(manifest)
    return Ranks(record.number, record.by_server)


def problem() -> str:
    """Sentence on what the double lacks."""
    return f"the double needs {' and '.join(MISSING)}" if MISSING else ""


def check_start(_: Manifest, python: str) -> str:
    """Interpreter of the started double; raises `EngineLoadError` if there is none."""
    if not Path(python).is_file():
        raise EngineLoadError(f"its interpreter {python} is not there")
    return f"the double of {python}"


def check_settings(_: Manifest, settings: EngineSettings) -> None:
    """Refuse the settings of TensorRT-LLM's KV cache."""
    if settings.kv_cache_free_gpu_mem_fraction is not None:
        raise EngineLoadError("kv_cache_free_gpu_mem_fraction is not for the double")


BUILD = dataclasses.replace(null.BUILD, takes_long=True)
DOUBLE = EnginePlugin(
    name="double",
    title="The Double",
    load=NULL_LOADER,
    record=Lazy("tests.unit.engine_doubles:DoubleRecord"),
    ranks=Lazy("tests.unit.engine_doubles:ranks"),
    problem=Lazy("tests.unit.engine_doubles:problem"),
    check_settings=Lazy("tests.unit.engine_doubles:check_settings"),
    build=Lazy("tests.unit.engine_doubles:BUILD"),
)
STARTED = EnginePlugin(
    name="started",
    title="the started double",
    load=NULL_LOADER,
    check_start=Lazy("tests.unit.engine_doubles:check_start"),
)


def install(site: Path) -> None:
    """Write the record of a distribution with the doubles into a folder of the path."""
    folder = site / "engine_doubles-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: engine_doubles\nVersion: 1\n")
    entries = "double = tests.unit.engine_doubles:DOUBLE\nstarted = tests.unit.engine_doubles:STARTED\n"
    (folder / "entry_points.txt").write_text(f"[openai_bls.engines]\n{entries}")
