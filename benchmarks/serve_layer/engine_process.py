"""Cost of an engine's own process, side by side with none: `python -m benchmarks.serve_layer.engine_process`.

Two servers at a time have the same null engine, one in the process of `tensorrt_llm`, the other in a process of its own
(`engine_python`). Streamed chats on /v1 go to both in turn, round after round: first with an engine that is as fast as
it can be, for tokens/s, then with steps so far apart that each has a token of every stream, for CPU time per step: of
all processes of a server, and of those alone that the engine runs in. Prints a table in Markdown with medians of the
rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients.driver import Clients, ProbeError, exit_on_sigterm, measure, warm_up
from benchmarks.clients.target import Plan, http_target, words_for
from benchmarks.contenders.servers import Setup, prepare
from benchmarks.support import ROOT
from benchmarks.support.machine import conditions
from benchmarks.support.options import levels, positive
from benchmarks.support.report import markdown_table
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.testing import RunningServer, run_server

_SIDES: dict[str, dict[str, str]] = {"in process": {}, "own process": {"OPENAI_BLS_ENGINE_PYTHON": sys.executable}}
_STEPS = "openai_bls_engine_steps_total"
# Seconds after which the engine's load has reached the metrics.
_SETTLE_S = 2.5
_MANY = 1_000_000
# Names of the processes that the engine runs in.
_ENGINE = ("tensorrt_llm", "python", "python3", Path(sys.executable).name)


@dataclass
class Side:
    """One of the two servers, and what was measured of it, by number of streams."""

    server: RunningServer
    words: int = 32
    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    us_per_step: dict[int, list[float]] = field(default_factory=dict)
    """CPU time of all processes."""
    engine_us_per_step: dict[int, list[float]] = field(default_factory=dict)
    """CPU time of the stub of `tensorrt_llm` and of the engine's own process."""

    def plan(self, streams: int, options: argparse.Namespace) -> Plan:
        """Streamed chats for `--seconds`."""
        return Plan(
            target=http_target("chat", self.server.openai_url, model="openai_bls"),
            concurrency=streams,
            requests=_MANY,
            prompt_words=self.words,
            output_tokens=options.output_tokens,
            timeout_s=120.0,
            stall_s=30.0,
            seconds=options.seconds,
        )

    def steps(self) -> float:
        """Steps of the engine so far."""
        time.sleep(_SETTLE_S)
        page = self.server.openai_url.removesuffix("/v1") + "/metrics"
        with urllib.request.urlopen(page, timeout=30) as answer:
            return steps_of(answer.read().decode())


def steps_of(page: str) -> float:
    """Steps of the engine, on a page of metrics."""
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(_STEPS))


@contextlib.contextmanager
def sides(
    setup: Setup, step_delay_ms: float, clients: Clients, options: argparse.Namespace
) -> Iterator[dict[str, Side]]:
    """Both servers, warmed up."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, environment in _SIDES.items():
            env = {"OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": f"{step_delay_ms:g}", **environment}
            side = Side(stack.enter_context(run_server(setup.repository, env)), words_for(64, setup.tokenizer))
            warm_up(clients, side.plan(8, options), 64)
            found[name] = side
        yield found


def fast(clients: Clients, found: Mapping[str, Side], options: argparse.Namespace) -> None:
    """Rounds with an engine that is as fast as it can be."""
    for number in range(options.rounds):
        for streams in options.streams:
            for name in _in_turn(found, number):
                side = found[name]
                one = measure(clients, name, side.plan(streams, options), side.server.pid)
                _require(one.failures)
                side.tokens_per_s.setdefault(streams, []).append(one.tokens_per_s)
                print(f"round {number + 1}: {name} at {streams}: {one.tokens_per_s:,.0f} tokens/s", file=sys.stderr)


def paced(clients: Clients, found: Mapping[str, Side], options: argparse.Namespace) -> None:
    """Rounds with a step each few milliseconds."""
    for number in range(options.rounds):
        for streams in options.streams:
            for name in _in_turn(found, number):
                side = found[name]
                before = side.steps()
                one = measure(clients, name, side.plan(streams, options), side.server.pid)
                _require(one.failures)
                steps = side.steps() - before
                cost = (one.server_cpu_s or 0.0) / steps * 1e6
                engine = sum(one.server_cpu_by_process.get(process, 0.0) for process in set(_ENGINE)) / steps * 1e6
                side.us_per_step.setdefault(streams, []).append(cost)
                side.engine_us_per_step.setdefault(streams, []).append(engine)
                print(
                    f"round {number + 1}: {name} at {streams}: {cost:,.0f} µs a step, {engine:,.0f} of the engine",
                    file=sys.stderr,
                )


def _in_turn(found: Mapping[str, Side], number: int) -> list[str]:
    """The sides, the other one first in every second round."""
    return list(found) if number % 2 == 0 else list(found)[::-1]


def _require(failures: Mapping[str, int]) -> None:
    for failure in failures:
        raise LaunchError(f"a request failed: {failure}")


Figures = Mapping[str, Mapping[int, Sequence[float]]]
"""Values of all rounds, by side and number of streams."""


def table(throughput: Figures, cost: Figures, engine_cost: Figures) -> str:
    """One row per number of streams; ratios and differences are of the same round."""
    inside, outside = _SIDES
    body = []
    for streams in throughput[inside]:
        row = [str(streams)]
        for figures, digits in ((throughput, "ratio"), (cost, "more"), (engine_cost, "more")):
            row += [f"{statistics.median(figures[name][streams]):,.0f}" for name in (inside, outside)]
            pairs = list(zip(figures[inside][streams], figures[outside][streams], strict=True))
            if digits == "ratio":
                row.append(f"{statistics.median(own / within for within, own in pairs):.2f}")
            else:
                row.append(f"{statistics.median(own - within for within, own in pairs):+,.0f}")
        body.append(row)
    headers = ["streams"]
    for what, compared in (("tokens/s", "ratio"), ("µs a step", "more"), ("engine, µs a step", "more")):
        headers += [f"{what}, {inside}", outside, compared]
    return markdown_table(headers, body)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_layer.engine_process", description=__doc__)
    parser.add_argument("--streams", type=levels, default=(1, 64, 512), help="with commas between (1,64,512)")
    parser.add_argument("--rounds", type=positive, default=5, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="for a cell (default %(default)s)")
    parser.add_argument("--output-tokens", type=positive, default=128, help="default %(default)s")
    parser.add_argument("--step-delay-ms", type=float, default=40.0, help="of the paced rounds (default %(default)s)")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    try:
        with tempfile.TemporaryDirectory(prefix="openai_bls-") as scratch, Clients() as clients:
            setup = prepare(options.repository, Path(scratch))
            made = conditions("")
            with sides(setup, 0.0, clients, options) as found:
                fast(clients, found, options)
                throughput = {name: side.tokens_per_s for name, side in found.items()}
            with sides(setup, options.step_delay_ms, clients, options) as found:
                paced(clients, found, options)
                cost = {name: side.us_per_step for name, side in found.items()}
                engine_cost = {name: side.engine_us_per_step for name, side in found.items()}
    except (LaunchError, ProbeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{made.date}, {made.cores} cores, load {made.load_before} before\n")
    print(table(throughput, cost, engine_cost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
