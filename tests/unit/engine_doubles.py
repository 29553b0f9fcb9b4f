"""Doubles of engines: plug-ins with the answers that a test of the server wants, and nothing to load.

A test that uses the fixture `engine_doubles` has them, as engines of a distribution that is installed.
"""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openai_bls.builder import null
from openai_bls.core.engine import Engine
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.plugin import EnginePlugin, Lazy
from openai_bls.launcher.jobs import JobPlan, JobRequest
from openai_bls.launcher.tritonserver.job import JobLog

NULL_LOADER = Lazy[Callable[..., Engine]]("openai_bls.engines.null.loading:load")
MISSING: list[str] = []
"""Packages that the double needs and does not find."""


def double() -> Manifest:
    """Manifest of the double."""
    return Manifest("double", "m", 9, 1, 1)


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


@dataclass(frozen=True)
class DoubleJob:
    """Job of the double: its program, once, with a word for each rank."""

    world_size: int
    program = "double-run"
    notes = ("note: a double",)

    def command(self, server: Sequence[str], prefix: str) -> list[str]:
        """Command of the job."""
        return [self.program, *(f"{prefix}{rank}" for rank in range(self.world_size)), *server]

    def summary(self) -> str:
        """One line on the job."""
        return f"{self.world_size} ranks"

    def log(self) -> JobLog:
        """Nothing reads the log of the double."""
        raise NotImplementedError


class DoubleJobs:
    """Jobs of the double, by an option and a variable of its own."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add `--double-ranks` and `--double-run`."""
        parser.add_argument("--double-ranks", type=int, default=0)
        parser.add_argument("--double-run", type=int)

    def plan(self, options: Namespace, request: JobRequest) -> JobPlan:
        """Job of as many ranks as the option says, without the double's variable."""
        environment = {name: value for name, value in request.environment.items() if name != "DOUBLE_RANK"}
        return JobPlan(DoubleJob(options.double_ranks) if options.double_ranks else None, environment)

    def run(self, options: Namespace, request: JobRequest) -> int | None:
        """Exit status that the option names."""
        status: int | None = options.double_run
        return status if status is None else status + len(request.engines)


JOBS = DoubleJobs()
BUILD = dataclasses.replace(null.BUILD, takes_long=True)
DOUBLE = EnginePlugin(
    name="double",
    title="The Double",
    load=NULL_LOADER,
    problem=Lazy("tests.unit.engine_doubles:problem"),
    check_settings=Lazy("tests.unit.engine_doubles:check_settings"),
    jobs=Lazy("tests.unit.engine_doubles:JOBS"),
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
