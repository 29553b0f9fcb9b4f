"""The serving layer of this tree and that of an older one: `python -m benchmarks.serve_layer.older FOLDER`.

FOLDER is a checkout with a `.venv` and a built engine (`make engine`). Two servers with the null engine share one core,
the client has another. Streamed chats and completions on /v1 go to both in turn, round after round, with answers of 128
tokens, which mostly cost by the token, and of one token, which cost by the request. Prints a table in Markdown with
medians of the rounds; ratios are of the same round.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from benchmarks.clients.driver import Clients, ProbeError, exit_on_sigterm, measure, warm_up
from benchmarks.clients.target import Api, Plan, http_target, words_for
from benchmarks.contenders.servers import prepare
from benchmarks.support import ROOT
from benchmarks.support.machine import conditions
from benchmarks.support.options import levels, positive
from benchmarks.support.report import markdown_table
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.testing import run_server

_ENGINE = {"OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "0"}
# `openai_bls.launch` is what `openai_bls.launcher` was called before.
_OTHER = """
import sys, tempfile
from pathlib import Path
from benchmarks.contenders.servers import prepare
try:
    from openai_bls.launcher.testing import run_server
except ModuleNotFoundError:
    from openai_bls.launch.testing import run_server
with tempfile.TemporaryDirectory(prefix="openai_bls-") as scratch:
    setup = prepare(Path("model_repository").resolve(), Path(scratch))
    with run_server(setup.repository, {"OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "0"}) as server:
        print("at", server.openai_url, server.pid, flush=True)
        sys.stdin.read()
"""
# As `openai-bls serve` and the older tree have it. Our tests' servers look ten times a second, to end sooner.
_ARGS = ("--metrics-interval-ms=2000",)
_NOW, _OLDER = "this tree", "older"

Cell = tuple[Literal["chat", "completions"], int, int]
"""Endpoint of /v1, tokens of an answer, streams."""
Figures = Mapping[Cell, Mapping[str, Sequence[tuple[float, float]]]]
"""By cell and side, for each round: tokens/s, and CPU time of all processes in µs per answer."""


@contextlib.contextmanager
def _older(folder: Path) -> Iterator[tuple[str, int]]:
    """URL of /v1 and process id of the server of another checkout."""
    command = [str(folder / ".venv/bin/python"), "-c", _OTHER]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = next((line.split() for line in process.stdout if line.startswith("at ")), None)
        if found is None:
            raise LaunchError(f"{folder} has no server to start: it needs a .venv and a built engine")
        try:
            yield found[1], int(found[2])
        finally:
            # Its end of input is the order to end.
            process.communicate()


def table(figures: Figures) -> str:
    """One row per cell."""
    body = []
    for (api, tokens, streams), sides in figures.items():
        row = [f"{api}, {tokens} tokens, {streams}"]
        for at in range(2):
            now, older = ([one[at] for one in sides[name]] for name in (_NOW, _OLDER))
            ratios = [a / b for a, b in zip(now, older, strict=True)]
            row += [f"{statistics.median(older):,.0f}", f"{statistics.median(now):,.0f}"]
            row.append(f"{statistics.median(ratios):.2f}")
        body.append(row)
    headers = ["endpoint, answers, streams"]
    for what in ("tokens/s", "CPU µs per answer"):
        headers += [f"{what}, {_OLDER}", _NOW, "times"]
    return markdown_table(headers, body)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_layer.older", description=__doc__)
    parser.add_argument("folder", type=Path, help="the older checkout")
    parser.add_argument("--streams", type=levels, default=(64, 16, 1), help="with commas between (64,16,1)")
    parser.add_argument("--rounds", type=positive, default=5, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=2.5, help="for a cell (default %(default)s)")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    cores = sorted(os.sched_getaffinity(0))
    cells: list[Cell] = [
        ("chat" if chat else "completions", tokens, streams)
        for chat in (True, False)
        for tokens in (128, 1)
        for streams in options.streams
    ]
    figures: dict[Cell, dict[str, list[tuple[float, float]]]] = {cell: {_NOW: [], _OLDER: []} for cell in cells}
    try:
        with contextlib.ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openai_bls-")))
            setup = prepare(ROOT / "model_repository", scratch)
            made = conditions("")
            stack.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, cores[:1])
            older = stack.enter_context(_older(options.folder.resolve()))
            server = stack.enter_context(run_server(setup.repository, _ENGINE, _ARGS))
            os.sched_setaffinity(0, cores[-1:])
            clients = stack.enter_context(Clients())
            sides = {_NOW: (server.openai_url, server.pid), _OLDER: older}
            words = words_for(64, setup.tokenizer)

            def plan(url: str, api: Api, tokens: int, streams: int) -> Plan:
                target = http_target(api, url, model="openai_bls")
                return Plan(target, streams, 1_000_000, words, tokens, seconds=options.seconds)

            for url, _ in sides.values():
                warm_up(clients, plan(url, "chat", 128, 16), 64)
            for number in range(options.rounds):
                for cell in cells:
                    for name in list(sides)[:: -1 if number % 2 else 1]:
                        url, pid = sides[name]
                        one = measure(clients, name, plan(url, *cell), pid)
                        for failure in one.failures:
                            raise LaunchError(f"a request failed: {failure}")
                        answers = one.tokens_per_s * options.seconds / cell[1]
                        cost = (one.server_cpu_s or 0.0) / answers * 1e6
                        figures[cell][name].append((one.tokens_per_s, cost))
    except (LaunchError, ProbeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{made.date}, {made.cores} cores, load {made.load_before} before\n")
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
