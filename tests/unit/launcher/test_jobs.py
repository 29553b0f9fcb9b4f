"""Jobs of several ranks as the plug-in of an engine brings them: options of `serve`, plan, and a run in its place."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from openai_bls.commands import main as cli
from openai_bls.engines import registry
from openai_bls.launcher import checks, jobs
from openai_bls.launcher.errors import LaunchError
from tests.unit.engine_doubles import DoubleJob
from tests.unit.launcher.test_serve import capture, run_dry

pytestmark = pytest.mark.usefixtures("engine_doubles")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tensorrt_llm").mkdir()
    return tmp_path


def test_a_job_of_an_engines_plug_in(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A dry run refuses what a start refuses: here there is no engine.
    monkeypatch.setattr(checks, "check_some_engine", lambda repository: [])
    where = ("--model-repository", str(repository))
    note, command = run_dry(capsys, *where, "--double-ranks", "2")[-2:]
    assert note == "# note: a double"
    words = shlex.split(command)
    assert words[:3] == ["double-run", "openai_bls_0", "openai_bls_1"]
    # A job loads every model once.
    assert "--model-control-mode=explicit" not in words
    assert "double-run" not in run_dry(capsys, *where)[-1]


def test_a_plan_without_a_job_has_the_environment_of_every_engine(repository: Path) -> None:
    request = jobs.JobRequest(repository, [], {"DOUBLE_RANK": "0", "PATH": "/bin"})
    assert jobs.plan(jobs.defaults(), request) == (None, {"PATH": "/bin"})
    assert jobs.plan(capture("--double-ranks", "3").jobs, request) == (DoubleJob(3), {"PATH": "/bin"})


def test_a_command_that_runs_as_a_job(repository: Path) -> None:
    """Its status is the command's; a server is not started."""
    assert cli.main(["serve", "--model-repository", str(repository), "--double-run", "6"]) == 7


def test_an_engine_that_cannot_be_imported_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._entries(), "broken", registry._Entry("no_such_package:PLUGIN", "a distribution"))
    with pytest.raises(LaunchError, match="no_such_package"):
        jobs.defaults()
