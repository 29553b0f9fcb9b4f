"""`serve` with options about ranks: what it reads, and what a dry run prints."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from openai_bls.commands import main as cli
from openai_bls.core.manifest import write_manifest
from openai_bls_tensorrt_llm.legacy.ranks.jobs import rank_options
from openai_bls_tensorrt_llm.legacy.ranks.ranks import RankOptions
from tests.unit.launcher.test_serve import run_dry
from tests_tensorrt_llm.legacy.ranks.support import engine


def capture(*argv: str) -> RankOptions:
    return rank_options(cli.parse("serve", argv))


def place(repository: Path, ranks: int, *, by_server: bool = False) -> None:
    """An engine, without which a dry run refuses what a start would."""
    version = repository / "tensorrt_llm" / "1"
    version.mkdir(parents=True)
    write_manifest(version, engine(ranks, by_server=by_server))


def test_serve_reads_what_is_said_of_ranks() -> None:
    options = capture(
        *("--world-size", "4", "--tensorrt_llm_model_name", "a,b", "--hosts", "x:2,y:2", "--oversubscribe"),
        *("--mpirun-arg=--tag-output", "--mpirun-arg=-q", "--", "--log-verbose=1"),
    )
    assert options == RankOptions(
        world_size=4,
        engine_names=("a", "b"),
        hosts="x:2,y:2",
        oversubscribe=True,
        mpirun_args=("--tag-output", "-q"),
    )
    other = capture(*("--mode", "orchestrator", "--tensorrt-llm-model-name", "a", "--hostfile", "f"))
    assert other == RankOptions(mode="orchestrator", engine_names=("a",), hostfile=Path("f"))
    assert capture("--world_size", "2", "--dry-run") == RankOptions(world_size=2)


def test_dry_run_tells_what_leaves_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place(tmp_path, 4)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    *changes, command = run_dry(capsys, "--model-repository", str(tmp_path))
    assert "unset OMPI_COMM_WORLD_SIZE" in changes
    assert "mpirun" not in command


def test_dry_run_of_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(tmp_path, 2, by_server=True)
    where = ("--model-repository", str(tmp_path))
    command = run_dry(capsys, *where, "--world-size", "2", "--", "--log-verbose=1")[-1]
    words = shlex.split(command)
    first, second = words[: words.index(":")], words[words.index(":") :]
    assert "--http-port=8000" in first
    assert "--allow-http=false" in second
    assert "--log-verbose=1" in first
    assert "--log-verbose=1" in second
    *changes, command = run_dry(capsys, *where, "--mode", "orchestrator")
    assert "export TRTLLM_ORCHESTRATOR=1" in changes
    assert "--pinned-memory-pool-byte-size=0" in shlex.split(command)


def test_the_models_of_ranks_are_not_loaded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(tmp_path, 2, by_server=True)
    command = run_dry(capsys, "--model-repository", str(tmp_path), "--world-size", "2")[-1]
    words = shlex.split(command)
    assert "--model-control-mode=explicit" not in words[: words.index(":")]
