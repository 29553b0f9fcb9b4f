"""Command `bench`: a running server under load."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from openai_bls.commands.options import count
from openai_bls.terminal.connection import above_zero
from openai_bls.terminal.connection import add_arguments as add_connection


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Load a running server with streamed chat completions by NVIDIA's aiperf, a program that you install"
        " (`pipx install aiperf`), and print time to first token (TTFT), inter-token latency (ITL), tokens/s and"
        " goodput. Words after -- go to aiperf as they are."
    )
    add_connection(parser, timeout=600.0, waits_for="each whole answer")
    parser.set_defaults(ca_file=None, client_certfile=None, client_keyfile=None)  # aiperf has no such options
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency",
        type=_numbers,
        default=(1, 8, 32),
        metavar="N[,N]",
        help="closed loop: requests at a time, one load after the other (default: 1,8,32)",
    )
    load.add_argument(
        "--rate", type=_rates, metavar="X[,X]", help="open loop: arrivals per second, at random times (Poisson)"
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
    parser.add_argument(
        "--tokenizer",
        default="builtin",
        metavar="NAME",
        help="that measures prompts: a hub id, a folder, or aiperf's own (default: %(default)s)",
    )


def run(options: Namespace) -> int:
    """Measure; the exit status of aiperf."""
    # Here, since help and completion need none of its packages.
    from openai_bls.terminal.bench import run as bench

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
