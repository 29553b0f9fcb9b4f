"""Number of ranks of a server, and the `mpirun` job or the environment that starts them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from openai_bls.core import config_pbtxt
from openai_bls.core.manifest import MANIFEST_NAME, EngineLoadError, Manifest, load_manifest
from openai_bls.core.processes.machine import SERVER_MARK
from openai_bls.core.processes.process_tree import names_a_rank
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.jobs import JobPlan, JobRequest
from openai_bls.launcher.tritonserver.command import has_backend_setting
from openai_bls_tensorrt_llm.legacy.ranks.mpi_job import Mode, MpiJob, find_mpirun
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Exported to ranks on other machines; on this one they are inherited.
_TRAVELLING = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_TRAVELLING_PREFIXES = ("OPENAI_BLS_", "TRTLLM_", "TLLM_", "NCCL_", "UCX_")
# Of rank 0 alone, which runs here.
_STAYING = (
    "OPENAI_BLS_API_KEY",
    "OPENAI_BLS_API_KEYS_FILE",
    "OPENAI_BLS_HTTP_HOST",
    "OPENAI_BLS_HTTP_PORT",
    SERVER_MARK,
)

# Set in every process of an mpirun.
_RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"
_HOSTS = re.compile(r"[\w.-]+(:[1-9]\d*)?(,[\w.-]+(:[1-9]\d*)?)*")


@dataclass(frozen=True)
class RankOptions:
    """Options of the command line about ranks."""

    world_size: int | None = None
    """Number of ranks; None takes what the engines were built for."""
    mode: Mode = "leader"
    engine_names: tuple[str, ...] = ()
    """Models that ranks other than 0 load; empty stands for all engines."""
    hosts: str = ""
    """Hosts as mpirun's --host takes them: `a:8,b:8`."""
    hostfile: Path | None = None
    oversubscribe: bool = False
    mpirun_args: tuple[str, ...] = ()


class Ranks(NamedTuple):
    """Processes of an engine, each with separate GPUs."""

    number: int
    by_server: bool
    """mpirun starts a tritonserver for each, for the C++ backend; False: the LLM API starts them."""


class EngineHead(msgspec.Struct, frozen=True):
    """Part of an engine that concerns ranks."""

    ranks: Ranks | None = None
    """Ranks of an engine of TensorRT-LLM."""
    instances: int = 1
    """Copies that the C++ backend runs, each on separate GPUs (`gpu_device_ids` in config.pbtxt)."""


def engine_heads(repository: Path, engines: Sequence[str]) -> dict[str, EngineHead]:
    """Head of each of these engines; an empty one where its manifest cannot be read.

    The engine itself refuses a manifest that breaks the contract.
    """
    heads = {}
    for name in engines:
        found = next(iter(sorted((repository / name).glob(f"*/{MANIFEST_NAME}"))), None)
        try:
            heads[name] = EngineHead() if found is None else _head(load_manifest(found.parent), repository / name)
        except EngineLoadError:
            heads[name] = EngineHead()
    return heads


def _head(manifest: Manifest, model: Path) -> EngineHead:
    if manifest.engine != "tensorrt_llm":
        return EngineHead()
    record = TensorRtLlmRecord.of(manifest)
    ranks = Ranks(record.world_size, by_server=record.backend == "cpp")
    return EngineHead(ranks, _instances(model / "config.pbtxt") if ranks.by_server else 1)


def _instances(path: Path) -> int:
    """Instances of an engine of the C++ backend; one if its configuration, which Triton would refuse, is unreadable."""
    try:
        return config_pbtxt.parameters(config_pbtxt.read(path)).get("gpu_device_ids", "").count(";") + 1
    except (OSError, ValueError):
        return 1


def plan_ranks(options: RankOptions, request: JobRequest) -> JobPlan:
    """MPI job for the ranks of a repository (None for a plain tritonserver), and its environment.

    Raises:
        LaunchError: the options do not fit the engines or each other, or there is no mpirun.
    """
    heads = engine_heads(request.repository, request.engines)
    return JobPlan(plan_job(options, heads, request), rank_environment(options, heads, request.environment))


def plan_job(options: RankOptions, heads: Mapping[str, EngineHead], request: JobRequest) -> MpiJob | None:
    """Plan of `plan_ranks`, which has read the manifests; None where one plain tritonserver is right."""
    _check_names(options, request.repository, list(heads))
    world_size = _world_size(options, heads)
    if options.mode == "leader" and world_size == 1:
        _refuse_what_is_mpiruns(options)
        return None
    _check_hosts(options)
    if has_backend_setting(request.extra, "shm-region-prefix-name"):
        raise LaunchError("shm-region-prefix-name cannot be given with mpirun: each rank gets one of its own")
    if _RANK_VARIABLE in request.environment:
        raise LaunchError(
            "this command runs under an mpirun itself: start it once, without mpirun; it starts the ranks"
        )
    remote = bool(options.hosts or options.hostfile)
    models = options.engine_names or list(_cpp_ranks(heads) or heads)
    if not models and world_size > 1:
        raise LaunchError("no engine for the other ranks to load: name it with --tensorrt_llm_model_name")
    return MpiJob(
        mpirun=find_mpirun(request.environment),
        world_size=world_size,
        models=tuple(models),
        mode=options.mode,
        options=tuple(mpirun_options(options)),
        exported=tuple(exported(request.environment)) if remote else (),
        notes=tuple(_notes(options, heads, world_size)),
        absolute=remote or options.mode == "orchestrator",
    )


def rank_environment(options: RankOptions, heads: Mapping[str, EngineHead], base: Mapping[str, str]) -> dict[str, str]:
    """`base` as the server needs it: who orchestrates, and no traces of another MPI job where they would mislead.

    The LLM API starts its ranks itself; variables of an mpirun or srun around it would make it one of their ranks.
    """
    environment = dict(base)
    if any(head.ranks and not head.ranks.by_server for head in heads.values()):
        environment = {name: value for name, value in base.items() if not names_a_rank(name)}
    if options.mode == "orchestrator":
        environment |= {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    return environment


def _cpp_ranks(heads: Mapping[str, EngineHead]) -> dict[str, int]:
    """Number of ranks of each engine of the C++ backend."""
    found = {name: head.ranks for name, head in heads.items()}
    return {name: ranks.number for name, ranks in found.items() if ranks is not None and ranks.by_server}


def _check_names(options: RankOptions, repository: Path, engines: Sequence[str]) -> None:
    for name in options.engine_names:
        if not (repository / name).is_dir():
            raise LaunchError(
                f"--tensorrt_llm_model_name {name}: {repository} has no such model;"
                f" its engines are {', '.join(engines)}"
            )


def _world_size(options: RankOptions, heads: Mapping[str, EngineHead]) -> int:
    cpp = _cpp_ranks(heads)
    given = options.world_size
    if options.mode == "orchestrator":
        if given not in (None, 1):
            raise LaunchError("--mode orchestrator starts one tritonserver, which starts the workers: --world-size 1")
        return 1
    if given is None and len(set(cpp.values())) > 1:
        needs = ", ".join(f"{name} {ranks}" for name, ranks in cpp.items())
        raise LaunchError(f"the engines need different numbers of ranks ({needs}): serve them with --mode orchestrator")
    world_size = given if given is not None else next(iter(cpp.values()), 1)
    if world_size < 1:
        raise LaunchError(f"--world-size {world_size} is no number of ranks: give 1 or more")
    for name, ranks in cpp.items():
        if ranks > 1 and heads[name].instances > 1:
            raise LaunchError(
                f"the engine {name} has {heads[name].instances} instances of {ranks} ranks each (gpu_device_ids): "
                "serve it with --mode orchestrator"
            )
        if ranks != world_size:
            raise LaunchError(
                f"--world-size {world_size}: the engine {name} was built for {ranks} (tp x pp), leave it out"
            )
    if world_size > 1:
        for name, head in heads.items():
            if head.ranks is not None and not head.ranks.by_server:
                raise LaunchError(
                    f"--world-size {world_size}: the engine {name} runs on the LLM API, which starts its ranks itself;"
                    " leave --world-size out, or build with --backend cpp"
                )
    return world_size


def _refuse_what_is_mpiruns(options: RankOptions) -> None:
    given = {
        "--hosts": options.hosts,
        "--hostfile": options.hostfile,
        "--oversubscribe": options.oversubscribe,
        "--mpirun-arg": options.mpirun_args,
    }
    for flag, value in given.items():
        if value:
            raise LaunchError(f"{flag} is for several ranks, and this is one: give --world-size, or leave {flag} out")


def _check_hosts(options: RankOptions) -> None:
    if options.hosts and options.hostfile:
        raise LaunchError("--hosts and --hostfile name the machines twice: give one of them")
    if options.mode == "orchestrator" and (options.hosts or options.hostfile):
        raise LaunchError(
            "--mode orchestrator runs on one machine: leave --hosts and --hostfile out, or use leader mode"
        )
    if options.hosts and not _HOSTS.fullmatch(options.hosts):
        raise LaunchError(f"--hosts {options.hosts}: name machines and their GPUs as a:8,b:8, this machine first")
    if options.hostfile is not None and not options.hostfile.is_file():
        raise LaunchError(f"--hostfile {options.hostfile}: there is no such file")


def mpirun_options(options: RankOptions) -> list[str]:
    """Arguments of mpirun on the machines, the binding and what the user adds."""
    words = []
    if not any(word.lstrip("-").startswith("bind-to") for word in options.mpirun_args):
        words += ["--bind-to", "none"]
    if options.oversubscribe:
        words.append("--oversubscribe")
    if options.hosts:
        words += ["--host", options.hosts]
    if options.hostfile is not None:
        words += ["--hostfile", str(options.hostfile.resolve())]
    return [*words, *options.mpirun_args]


def exported(environment: Mapping[str, str]) -> list[str]:
    """Names of the environment variables that ranks on other machines get."""
    return sorted(
        name
        for name in environment
        if name in _TRAVELLING or (name.startswith(_TRAVELLING_PREFIXES) and name not in _STAYING)
    )


def _notes(options: RankOptions, heads: Mapping[str, EngineHead], world_size: int) -> list[str]:
    if heads and not _cpp_ranks(heads):
        if options.mode == "orchestrator":
            return ["note: no engine here is of TensorRT-LLM's C++ backend, which orchestrator mode is for"]
        others = "rank 1 loads" if world_size == 2 else f"ranks 1 to {world_size - 1} load"
        return [f"note: no engine here is of TensorRT-LLM's C++ backend: {others} a copy that gets nothing to do"]
    return []
