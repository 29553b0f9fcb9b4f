"""Several ranks: one `mpirun` command that starts a tritonserver a GPU, as the official launch_triton_server.py does.

Leader mode: rank 0 loads the whole repository and answers requests. Every other rank loads the engine models only, and
TensorRT-LLM's C++ backend makes it work for rank 0. Orchestrator mode: one tritonserver, whose C++ backend starts
workers of its own; it is for several engines on one machine.

Where this differs from the official script:

- The front ends of the other ranks are off. Officially they have rank 0's ports, which works as long as they block in
  the load of their engine and never open them. An engine that does load there would find the ports taken and end the
  whole server, or, with a port that is shared, answer requests with half of a repository.
- mpirun binds each of two ranks to one core when it is not told otherwise (measured with Open MPI 4.1.8 and 5.0.11),
  and with rank 0 all models of the repository. So it gets `--bind-to none`.
- Models and names of shared-memory regions are told apart by a prefix that no other server has.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openai_bls.launcher.server import has_flag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from openai_bls.launcher.engine_ranks import EngineHead

Mode = Literal["leader", "orchestrator"]

# By these a process takes itself for a rank of a running MPI job.
_IDENTITY_PREFIXES = ("OMPI_", "PMIX_", "PMI_")

# What rank 0 has of its own: left out of the other ranks' commands.
_RANK_0_FLAGS = (
    *(f"--{name}-{what}" for name in ("http", "grpc", "metrics") for what in ("port", "address")),
    *(f"--allow-{name}" for name in ("http", "grpc", "metrics", "sagemaker", "vertex-ai")),
    "--model-control-mode",
    "--load-model",
)
_FRONT_ENDS_OFF = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")


@dataclass(frozen=True)
class RankOptions:
    """What the command line says about ranks."""

    world_size: int | None = None
    """None takes what the engines were built for."""
    mode: Mode = "leader"
    engine_names: tuple[str, ...] = ()
    """Models that ranks other than 0 load; empty stands for all engines."""
    hosts: str = ""
    """As mpirun's --host takes them: `a:8,b:8`."""
    hostfile: Path | None = None
    oversubscribe: bool = False
    mpirun_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class MpiJob:
    """An mpirun command in the making: everything but the tritonserver command."""

    mpirun: str
    world_size: int
    models: tuple[str, ...]
    """What ranks other than 0 load."""
    mode: Mode = "leader"
    options: tuple[str, ...] = ()
    """Of mpirun itself."""
    exported: tuple[str, ...] = ()
    """Names of environment variables for ranks on other machines."""
    notes: tuple[str, ...] = ()
    """Sentences for the operator."""

    def command(self, server: Sequence[str], prefix: str) -> list[str]:
        """The whole command.

        Args:
            server: the command of rank 0, less what differs from rank to rank.
            prefix: begins the name of every shared-memory region.
        """
        words = [self.mpirun, "--allow-run-as-root", *self.options]
        # Open MPI 4 takes -x for one segment, 5 for all of them.
        exports = [word for name in self.exported for word in ("-x", name)]
        for rank in range(self.world_size):
            words += [*([":"] if rank else []), "-n", "1", *exports]
            words += server if rank == 0 else self._follower(server)
            if not has_flag(server, "--disable-auto-complete-config"):
                words.append("--disable-auto-complete-config")
            words.append(f"--backend-config=python,shm-region-prefix-name={prefix}r{rank}_")
        return words

    def summary(self) -> str:
        """What is started, in a line for the operator, with its notes."""
        if self.mode == "orchestrator":
            text = f"{self.mpirun} starts one tritonserver, which orchestrates its engines' workers"
        else:
            text = f"{self.mpirun} starts {self.world_size} ranks; those after 0 load {', '.join(self.models)}"
        return "; ".join([text, *self.notes])

    def _follower(self, server: Sequence[str]) -> list[str]:
        loads = [f"--load-model={name}" for name in self.models]
        return [*without_flags(server, _RANK_0_FLAGS), *_FRONT_ENDS_OFF, "--model-control-mode=explicit", *loads]


def rank_environment(options: RankOptions, heads: Mapping[str, EngineHead], base: Mapping[str, str]) -> dict[str, str]:
    """`base` as the server needs it: who orchestrates, and no traces of another MPI job where they would mislead.

    The LLM API starts its ranks itself; variables of an mpirun or srun around it would make it one of their ranks.
    """
    environment = dict(base)
    if any(head.tensorrt_llm and head.tensorrt_llm.backend == "python" for head in heads.values()):
        environment = {name: value for name, value in base.items() if not name.startswith(_IDENTITY_PREFIXES)}
    if options.mode == "orchestrator":
        environment |= {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    return environment


def orchestrator_flags(extra: Sequence[str]) -> list[str]:
    """Flags by which the one tritonserver of orchestrator mode takes no memory on its workers' GPUs, as officially."""
    flags = []
    if not has_flag(extra, "--pinned-memory-pool-byte-size"):
        flags.append("--pinned-memory-pool-byte-size=0")
    if not has_flag(extra, "--enable-peer-access"):
        flags.append("--enable-peer-access=false")
    if not has_flag(extra, "--cuda-memory-pool-byte-size"):
        flags += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(count_gpus())]
    return flags


def count_gpus() -> int:
    """The GPUs that nvidia-smi lists; 0 without it."""
    try:
        listing = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.splitlines())


def without_flags(args: Sequence[str], flags: Sequence[str]) -> list[str]:
    """`args` less `flags`, given as `--flag=value` or `--flag value`."""
    kept, skip = [], False
    for argument in args:
        name, equals, _ = argument.partition("=")
        if skip:
            skip = False
        elif name in flags:
            skip = not equals
        else:
            kept.append(argument)
    return kept
