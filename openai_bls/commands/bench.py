"""Command `bench`: a running server under load."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from openai_bls.commands.options import count
from openai_bls.terminal.connection import above_zero
from openai_bls.terminal.connection import add_arguments as add_connection


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Load a running server with streamed chat completions, and print time to first token (TTFT), inter-token"
        " latency (ITL), tokens/s and goodput. Prompts are random words. How many make --prompt-tokens follows from"
        " what the server counts for two probes; the mean that was measured is printed. aiperf does it where that is"
        " installed, a --tokenizer is given, and neither --output nor --plot is."
    )
    add_connection(parser)
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency",
        type=_numbers,
        default=(1, 8, 32),
        metavar="N[,N]",
        help="closed loop: requests at a time, one load after the other (default: 1,8,32)",
    )
    load.add_argument(
        "--rate",
        type=_rates,
        metavar="X[,X]",
        help="open loop: arrivals per second, at random times (Poisson); latencies count from when a request was due",
    )
    parser.add_argument(
        "--requests",
        type=_positive,
        metavar="N",
        help="of each load (default: 4 for each at a time, or 10 seconds of arrivals; at least 16)",
    )
    parser.add_argument("--prompt-tokens", type=_positive, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--output-tokens", type=_positive, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="let answers end by themselves; also for servers that refuse the field ignore_eos",
    )
    parser.add_argument(
        "--warm-up", type=count, default=2, metavar="N", help="requests before that (default: %(default)s)"
    )
    parser.add_argument(
        "--goodput-ttft", type=above_zero, default=1000.0, metavar="MS", help="limit of a good answer's TTFT"
    )
    parser.add_argument("--goodput-itl", type=above_zero, default=50.0, metavar="MS", help="and of its ITL")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of words and arrivals (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot, .svg or .png (needs matplotlib)")
    parser.add_argument(
        "--tool", choices=("auto", "aiperf", "own"), default="auto", help="what makes the load (default: %(default)s)"
    )
    parser.add_argument("--tokenizer", metavar="NAME", help="for aiperf: a hub id or a folder")


def run(options: Namespace) -> int:
    """Measure; 1 if a request has failed."""
    # Here, since help and completion need none of its packages.
    from openai_bls.terminal.bench.command import run as bench

    return bench(options)


def _positive(text: str) -> int:
    number = count(text)
    if not number:
        raise ArgumentTypeError("it must be at least 1")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_positive(part.strip()) for part in text.split(","))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(above_zero(part) for part in text.split(","))
