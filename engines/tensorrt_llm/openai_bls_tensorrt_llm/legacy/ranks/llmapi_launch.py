"""`serve` under TensorRT-LLM's own launcher for several machines, `trtllm-llmapi-launch`.

A job of SLURM or mpirun starts it once per GPU. On rank 0 it runs `serve` again, with `PROXY_VARIABLE` and an address
in the environment, by which the LLM API finds the ranks that wait on the others. Source: docs/llmapi.md of
tensorrtllm_backend. None of it was run with the real package.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Literal

from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.jobs import JobRequest
from openai_bls_tensorrt_llm.legacy.ranks.mpi_job import find_mpirun
from openai_bls_tensorrt_llm.legacy.ranks.ranks import RankOptions, engine_heads, exported, mpirun_options
from openai_bls_tensorrt_llm.legacy.ranks.started import PROXY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

Launcher = Literal["srun", "mpirun"]
PROGRAM = "trtllm-llmapi-launch"
_OPTION = "--launcher"


def command(
    launcher: Launcher, per_node: int | None, ranks: RankOptions, request: JobRequest, words: Sequence[str]
) -> list[str]:
    """Command of the job whose rank 0 runs `serve` again.

    Args:
        launcher: program that starts one process per GPU.
        per_node: GPUs of each machine; None leaves it to the launcher.
        ranks: options about ranks.
        request: start of the server on rank 0, with the environment of the job.
        words: words of the command line after the program, `serve` first.

    Raises:
        LaunchError: the engines or the options do not fit, or a program is missing.
    """
    environment = request.environment
    if PROXY_VARIABLE in environment:
        raise LaunchError(f"{_OPTION} {launcher} was given inside a job of {PROGRAM}: leave {_OPTION} out there")
    heads = engine_heads(request.repository, request.engines).values()
    sizes = {head.ranks.number for head in heads if head.ranks and not head.ranks.by_server}
    if len(sizes) != 1:
        what = f"engines of {' and '.join(map(str, sorted(sizes)))} ranks" if sizes else "no engine of the LLM API"
        raise LaunchError(
            f"{_OPTION} {launcher} starts the ranks of one engine of TensorRT-LLM's LLM API, and {request.repository} "
            f"has {what}; the C++ backend takes --hosts"
        )
    (world_size,) = sizes
    if ranks.world_size not in (None, world_size):
        raise LaunchError(
            f"--world-size is {ranks.world_size}, and the engine was built for {world_size}: leave it out"
        )
    if per_node and world_size % per_node:
        raise LaunchError(f"--gpus-per-node {per_node} does not divide the engine's {world_size} ranks")
    inner = [PROGRAM, *served(words)]
    if launcher == "srun":
        if ranks.hosts or ranks.hostfile or ranks.mpirun_args or ranks.oversubscribe:
            raise LaunchError("--hosts, --hostfile, --mpirun-arg and --oversubscribe are for --launcher mpirun")
        if shutil.which("srun", path=environment.get("PATH")) is None:
            raise LaunchError("no srun on PATH: start this on a machine of a SLURM cluster, or give --launcher mpirun")
        nodes = [f"--nodes={world_size // per_node}", f"--ntasks-per-node={per_node}"] if per_node else []
        return ["srun", "--mpi=pmix", f"--ntasks={world_size}", *nodes, *inner]
    spread = ["--map-by", f"ppr:{per_node}:node"] if per_node else []
    remote = exported(environment) if ranks.hosts or ranks.hostfile else []
    exports = [word for name in remote for word in ("-x", name)]
    mpirun = [find_mpirun(environment), "--allow-run-as-root"]
    return [*mpirun, "-n", str(world_size), *exports, *spread, *mpirun_options(ranks), *inner]


def served(words: Sequence[str]) -> list[str]:
    """Command of rank 0, which `trtllm-llmapi-launch` runs.

    Args:
        words: words of the command line after the program, `serve` first.

    Raises:
        LaunchError: a word would not arrive as it is.
    """
    found = [sys.executable, "-m", "openai_bls", *_without_launcher(words)]
    for word in found:
        # Its script expands the command unquoted.
        if not word or any(character.isspace() or character in "*?[" for character in word):
            raise LaunchError(
                f"{PROGRAM} splits its command at blanks and expands * ? [, so {word!r} would not arrive: leave it out,"
                " or give it as a setting in the environment"
            )
    return found


def _without_launcher(words: Sequence[str]) -> list[str]:
    """`words` less those about the job, up to the flags of tritonserver."""
    alone = {"--oversubscribe"}
    valued = {_OPTION, "--gpus-per-node", "--hosts", "--hostfile", "--mpirun-arg", "--world-size", "--world_size"}
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest]
        name, equals, _ = word.partition("=")
        if name in valued:
            if not equals:
                next(rest, None)
        elif name not in alone:
            kept.append(word)
    return kept
