"""The job of `serve --launcher`, and what its rank 0 is asked for."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.manifest import write_manifest
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.jobs import JobRequest
from openai_bls_tensorrt_llm.legacy.ranks.llmapi_launch import command
from openai_bls_tensorrt_llm.legacy.ranks.ranks import RankOptions
from openai_bls_tensorrt_llm.legacy.ranks.started import PROXY_VARIABLE
from tests_tensorrt_llm.legacy.ranks import support

WORDS = ["serve", "--model-repository", "models", "--launcher", "srun", "--gpus-per-node=8", "--host", "0.0.0.0", "--"]
INNER = ["trtllm-llmapi-launch", sys.executable, "-m", "openai_bls"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def put(repository: Path, *, by_server: bool = False) -> None:
    """An engine of 16 ranks."""
    folder = repository / "tensorrt_llm"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('name: "tensorrt_llm"')
    write_manifest(folder / "1", support.engine(16, by_server=by_server))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With an srun and an mpirun of Open MPI's."""
    for name, said in (("srun", ""), ("mpirun", "mpirun (Open MPI) 5.0.11")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}", "HOME": str(tmp_path)}


def test_srun(repository: Path, environment: dict[str, str]) -> None:
    put(repository)
    words = command("srun", 8, RankOptions(), JobRequest(repository, [], environment), [*WORDS, "--launcher=x"])
    job = ["srun", "--mpi=pmix", "--ntasks=16", "--nodes=2", "--ntasks-per-node=8"]
    # Up to the flags of tritonserver.
    kept = ["serve", "--model-repository", "models", "--host", "0.0.0.0", "--", "--launcher=x"]
    assert words == [*job, *INNER, *kept]


def test_mpirun(repository: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", environment["PATH"])
    put(repository)
    ranks = RankOptions(world_size=16, hosts="a:8,b:8", mpirun_args=("--tag-output",))
    words = ["serve", "--hosts", "a:8,b:8", "--mpirun-arg=--tag-output", "--world-size", "16", "--launcher", "mpirun"]
    variables = {**environment, "NCCL_DEBUG": "WARN", "OPENAI_BLS_API_KEY": "stays here"}
    found = command("mpirun", 8, ranks, JobRequest(repository, [], variables), words)
    job = ["mpirun", "--allow-run-as-root", "-n", "16", "-x", "NCCL_DEBUG", "-x", "PATH", "--map-by", "ppr:8:node"]
    spread = ["--bind-to", "none", "--host", "a:8,b:8", "--tag-output"]
    assert found == [*job, *spread, *INNER, "serve"]


@pytest.mark.parametrize("word", ["/models/a b", "/models/*", ""])
def test_words_that_the_launcher_would_split(word: str, repository: Path, environment: dict[str, str]) -> None:
    put(repository)
    with pytest.raises(LaunchError, match=re.escape(repr(word))):
        command("srun", None, RankOptions(), JobRequest(repository, [], environment), ["serve", "--log-file", word])


@pytest.mark.parametrize(
    ("made", "per_node", "ranks", "said"),
    [
        ({"by_server": True}, None, RankOptions(), "--launcher srun .*LLM API.*--hosts"),
        ({}, 5, RankOptions(), "--gpus-per-node 5 .* 16 ranks"),
        ({}, None, RankOptions(world_size=4), "--world-size is 4, .* 16:"),
        ({}, None, RankOptions(hosts="a:8"), "--hosts, .*--launcher mpirun"),
    ],
)
def test_refusals(
    made: dict[str, Any],
    per_node: int | None,
    ranks: RankOptions,
    said: str,
    repository: Path,
    environment: dict[str, str],
) -> None:
    put(repository, **made)
    with pytest.raises(LaunchError, match=said):
        command("srun", per_node, ranks, JobRequest(repository, [], environment), ["serve"])


def test_what_is_not_there_or_twice(repository: Path, tmp_path: Path) -> None:
    put(repository)
    with pytest.raises(LaunchError, match="srun on PATH"):
        command("srun", None, RankOptions(), JobRequest(repository, [], {"PATH": str(tmp_path)}), ["serve"])
    with pytest.raises(LaunchError, match=r"--launcher srun .*trtllm-llmapi-launch"):
        command("srun", None, RankOptions(), JobRequest(repository, [], {PROXY_VARIABLE: "1"}), ["serve"])
