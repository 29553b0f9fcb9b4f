"""Options of `serve` about ranks, and the part of the plug-in that makes jobs of them."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import get_args

from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.jobs import JobPlan, JobRequest
from openai_bls_tensorrt_llm.legacy.ranks import llmapi_job, llmapi_launch
from openai_bls_tensorrt_llm.legacy.ranks.mpi_job import Mode
from openai_bls_tensorrt_llm.legacy.ranks.ranks import RankOptions, plan_ranks


class RankJobs:
    """`launcher.jobs.ServerJobs` of TensorRT-LLM."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add options of `serve`."""
        ranks = parser.add_argument_group("several GPUs", "For TensorRT-LLM; see docs/operations/multi-gpu.md.")
        ranks.add_argument(
            "--launcher",
            choices=get_args(llmapi_launch.Launcher),
            help="start an engine of the LLM API on several machines: this command runs again on rank 0 of a job of"
            " trtllm-llmapi-launch",
        )
        ranks.add_argument("--gpus-per-node", type=_count, metavar="N", help="GPUs of each machine, with --launcher")
        ranks.add_argument(
            "--world-size",
            "--world_size",
            type=int,
            metavar="N",
            help="tritonservers to start with mpirun, one per GPU (default: what the engine was built for)",
        )
        ranks.add_argument(
            "--mode",
            choices=get_args(Mode),
            default="leader",
            help="leader: one tritonserver per GPU, on any number of machines. orchestrator: one tritonserver that"
            " starts workers, for several engines on one machine (default: %(default)s)",
        )
        ranks.add_argument(
            "--tensorrt_llm_model_name",
            "--tensorrt-llm-model-name",
            type=_names,
            default=(),
            metavar="NAME[,NAME]",
            help="models that ranks other than 0 load (default: every engine)",
        )
        ranks.add_argument("--hosts", default="", metavar="HOST:GPUS,...", help="machines for mpirun, this one first")
        ranks.add_argument("--hostfile", type=Path, metavar="FILE", help="the same as a file, as mpirun reads it")
        ranks.add_argument(
            "--oversubscribe", action="store_true", help="more ranks than mpirun counts slots, as with SLURM"
        )
        ranks.add_argument(
            "--mpirun-arg",
            action="append",
            default=[],
            metavar="WORD",
            help="one further word for mpirun, such as --mpirun-arg=--tag-output; repeatable",
        )

    def plan(self, options: Namespace, request: JobRequest) -> JobPlan:
        """Job of mpirun, and the environment without traces of another one."""
        return plan_ranks(rank_options(options), request)

    def run(self, options: Namespace, request: JobRequest) -> int | None:
        """Run the job that runs this command again, without --launcher."""
        launcher, per_node = options.launcher, options.gpus_per_node
        if not launcher:
            if per_node:
                raise LaunchError("--gpus-per-node is for --launcher srun or mpirun")
            return None
        words = llmapi_launch.command(launcher, per_node, rank_options(options), request, sys.argv[1:])
        if options.dry_run:
            Console().line(shlex.join(words))
            return 0
        if launcher == "mpirun":
            return llmapi_job.run(words, llmapi_launch.served(sys.argv[1:]))
        # A stop is SLURM's, which may run rank 0 on another machine.
        os.execvp(words[0], words)


def rank_options(options: Namespace) -> RankOptions:
    """Options about ranks, by a command line."""
    return RankOptions(
        options.world_size,
        options.mode,
        options.tensorrt_llm_model_name,
        options.hosts,
        options.hostfile,
        options.oversubscribe,
        tuple(options.mpirun_arg),
    )


def _count(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ArgumentTypeError(f"{text!r} is not a list of names with commas between")
    return found


JOBS = RankJobs()
