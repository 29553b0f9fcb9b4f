"""Drive a running server and print what it does: `python -m benchmarks.load --url http://127.0.0.1:9000/v1`.

Closed loop: at each level as many requests are in progress as `--concurrency` says, and each that ends is followed by
another. Exit code 1 if any request failed or was not complete, 2 if the server could not be used at all.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cpu
from benchmarks.driver import Clients, exit_on_sigterm, measure
from benchmarks.machine import conditions
from benchmarks.options import levels, positive
from benchmarks.probe import Probe, ProbeError, probe
from benchmarks.report import LEGEND, json_document, terminal
from benchmarks.stats import Measurement
from benchmarks.target import APIS, Plan, Target, grpc_target, http_target


@dataclass(frozen=True)
class Shape:
    """What the requests look like and how many there are."""

    levels: tuple[int, ...]
    """Requests in progress at the same time."""
    prompt_tokens: int
    """About, those of the chat template included."""
    output_tokens: int
    """Exactly."""
    requests: int | None
    """At each level; None leaves it to the next two."""
    requests_per_slot: int
    min_requests: int
    repeat: int
    timeout_s: float

    def requests_at(self, level: int) -> int:
        """How many requests are made at concurrency `level`."""
        return self.requests or max(self.requests_per_slot * level, self.min_requests)


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that make a `Shape`."""
    parser.add_argument("--concurrency", type=levels, default="1,16,64,128", help="levels (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=positive, default=64, help="about (default %(default)s)")
    parser.add_argument("--output-tokens", type=positive, default=128, help="exactly (default %(default)s)")
    parser.add_argument("--requests", type=positive, help="at each level, instead of the next two")
    parser.add_argument("--requests-per-slot", type=positive, default=4, help="times concurrency (default %(default)s)")
    parser.add_argument("--min-requests", type=positive, default=16, help="at least (default %(default)s)")
    parser.add_argument("--repeat", type=positive, default=3, help="rounds over all levels (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a request (default %(default)s)")
    parser.add_argument("--client-processes", type=positive, default=1, help="default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement")


def shape(options: argparse.Namespace) -> Shape:
    """The shape that `options` ask for."""
    return Shape(
        levels=options.concurrency,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        requests=options.requests,
        requests_per_slot=options.requests_per_slot,
        min_requests=options.min_requests,
        repeat=options.repeat,
        timeout_s=options.timeout,
    )


def run_levels(
    clients: Clients,
    targets: dict[str, Target],
    wanted: Shape,
    server_pid: int | None,
) -> list[Measurement]:
    """Measure every target at every level, `repeat` times over, targets side by side within a round.

    Args:
        targets: by the name that tables show.
        server_pid: the tritonserver; None leaves its CPU time out.

    Raises:
        ProbeError: a target does not answer as it should.
        OSError: the server cannot be reached.
    """
    probes = {path: probe(target, wanted.prompt_tokens) for path, target in targets.items()}
    for path, target in targets.items():
        # Connections, caches and lazily made objects on the server's side.
        clients.drive(plan_for(target, probes[path], wanted, min(max(wanted.levels), 16), requests=32, seed=0))
    results = []
    for round_number in range(1, wanted.repeat + 1):
        for level in wanted.levels:
            for path, target in targets.items():
                plan = plan_for(target, probes[path], wanted, level, wanted.requests_at(level), seed=round_number)
                one = measure(clients, path, plan, server_pid)
                results.append(one)
                print(
                    f"round {round_number}: {path} at {level}: {one.tokens_per_s:,.0f} tokens/s, "
                    f"{one.requests} requests, {one.failed} failed",
                    file=sys.stderr,
                    flush=True,
                )
    return results


def plan_for(target: Target, learned: Probe, wanted: Shape, level: int, requests: int, seed: int) -> Plan:
    """The plan for one measurement."""
    return Plan(
        target=target,
        concurrency=level,
        requests=requests,
        prompt_words=learned.prompt_words,
        output_tokens=wanted.output_tokens,
        layout=learned.layout,
        timeout_s=wanted.timeout_s,
        seed=seed,
    )


def server_pid(option: str, target: Target) -> int | None:
    """The tritonserver of `target` by the option --pid; None if it is not on this machine.

    Raises:
        ValueError: neither a number nor `auto`.
    """
    if option != "auto":
        return int(option)
    return cpu.find_server(target.port) if cpu.is_local(target.host) else None


def _target(options: argparse.Namespace) -> Target:
    if options.api == "grpc":
        return grpc_target(options.grpc_url, model=options.model, triton_model=options.triton_model)
    url = options.triton_url if options.api == "generate_stream" else options.url
    key = os.environ.get("OPENAI_BLS_API_KEY", "")
    return http_target(options.api, url, model=options.model, triton_model=options.triton_model, api_key=key)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__.partition("\n")[0])
    parser.add_argument("--api", choices=APIS, default="chat", help="default %(default)s")
    parser.add_argument("--url", default="http://127.0.0.1:9000/v1", help="for chat, completions (%(default)s)")
    parser.add_argument("--triton-url", default="http://127.0.0.1:8000", help="for generate_stream (%(default)s)")
    parser.add_argument("--grpc-url", default="127.0.0.1:8001", help="for grpc (%(default)s)")
    parser.add_argument("--model", default="openai_bls", help="the model in requests (default %(default)s)")
    parser.add_argument("--triton-model", default="openai_bls", help="Triton's model (default %(default)s)")
    parser.add_argument("--pid", default="auto", help="of tritonserver; `auto` finds it by the port, if local")
    add_shape_arguments(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    made = conditions(" ".join(["python -m benchmarks.load", *given]))
    try:
        target = _target(options)
        pid = server_pid(options.pid, target)
        with Clients(options.client_processes) as clients:
            results = run_levels(clients, {target.api: target}, shape(options), pid)
    except (OSError, ProbeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"\n{terminal(results)}\n\n{LEGEND}")
    if options.json:
        options.json.write_bytes(json_document({target.api: results}, made))
    return 1 if any(one.failed for one in results) else 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
