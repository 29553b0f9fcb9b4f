"""The command that measures everything on a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.gpu import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """One whose time is used up by nothing."""
    options = argparse.Namespace(
        work=tmp_path / "work", out=tmp_path / "out", concurrency=(1,), everything=True, budget_s=None
    )
    return Session(options)


def test_tables_of_a_further_command_have_a_file_of_their_own(session: Session) -> None:
    assert session.further("report", [], 60) == "tables in report.md"
    assert (session.options.out / "report.md").is_file()


def test_a_further_command_that_fails_leaves_the_others(session: Session) -> None:
    assert not session.stage("none", 60, lambda seconds: session.further("no_such_module", [], seconds))
    assert "FAILED" in session.results.stages["none"]
    assert session.stage("report", 60, lambda seconds: session.further("report", [], seconds))
