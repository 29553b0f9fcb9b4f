"""Builds of tests: of the embedded and the null engine, and what the built engine answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.commands.main import run as run_command
from openai_bls.core.manifest import BuildError, Manifest
from openai_bls.engines.registry import create_engine
from tests.engine_contract.support import Recorder, request
from tests.unit.builder.repositories import leftovers


def run(source: Path | str, repository: Path, **options: object) -> tuple[Manifest, list[str]]:
    """Build; without the self-test, which takes seconds, unless it is asked for."""
    lines: list[str] = []
    wanted = BuildOptions(str(source), repository, **{"engine": "transformers", "self_test": False, **options})  # type: ignore[arg-type]
    manifest = build(wanted, lines.append)
    return manifest, lines


def refusal(source: Path | str, repository: Path, **options: object) -> str:
    with pytest.raises(BuildError) as caught:
        run(source, repository, **options)
    assert "\n" not in str(caught.value)
    assert not leftovers(repository)
    return str(caught.value)


def answer(repository: Path) -> list[int]:
    """What the engine in the repository generates."""
    recorder = Recorder()
    engine = create_engine(repository / "tensorrt_llm" / "1", recorder, {"num_threads": "1"})
    engine.submit(request(1))
    recorder.wait_end(1)
    engine.close()
    return recorder.tokens[1]


def build_main(arguments: Sequence[str]) -> int:
    """The exit status of `openai-bls build`."""
    return run_command("build", arguments)
