"""Builds of a small checkpoint with the fake TensorRT-LLM, whose worker runs in this process but for `real_worker`."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from openai_bls_tensorrt_llm.recipe.worker import main as worker_module
from tests_tensorrt_llm.engine.fake_support import patched
from tests_tensorrt_llm.recipe.build_support import Bench, Machine, make_checkpoint


@pytest.fixture
def bench(machine: Machine, repository: Path, tmp_path: Path) -> Bench:
    return Bench(machine, make_checkpoint(tmp_path / "source" / "tiny"), repository)


@pytest.fixture
def real_worker() -> None:
    """For tests whose worker is the process that it really is."""


@pytest.fixture(autouse=True)
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_worker" not in request.fixturenames:
        for module in ("building", "survey"):
            monkeypatch.setattr(f"openai_bls_tensorrt_llm.recipe.{module}.run_worker", run_worker_here)


def run_worker_here(arguments: Sequence[str], log: Path, on_line: Callable[[str], None], tick: object) -> int:
    output = io.StringIO()
    with patched(dict(os.environ)), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = worker_module.main(list(arguments))
        except Exception:
            traceback.print_exc()
            code = 1
    log.write_text(output.getvalue())
    for line in filter(str.strip, output.getvalue().replace("\r", "\n").split("\n")):
        on_line(line)
    return code
