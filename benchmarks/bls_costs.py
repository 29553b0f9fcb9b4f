"""What BLS calls add to a request, side by side: `python -m benchmarks.bls_costs`.

A server for each case runs at the same time, with the null engine and as fast as it goes. Requests on /v1 go to the
servers in turns, one at a time and then several; so whatever else the machine does meets all cases alike. Writes a
section of RESULTS.md, or with --out to a file.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.contenders.servers import prepare
from benchmarks.machine import Conditions, conditions, triton_version
from benchmarks.options import positive
from benchmarks.processes import cpu_used, sample_cpu
from benchmarks.report import markdown_table, with_section
from openai_bls.launcher.testing import RunningServer, run_server

_ROOT = Path(__file__).resolve().parent.parent
_RESULTS = _ROOT / "benchmarks" / "RESULTS.md"
_MODELS = _ROOT / "benchmarks" / "bls_models"
_AT_A_TIME = 16
_TOKENS = 32
_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "word " * 64}], "max_tokens": _TOKENS}
_WARM_UP = 20

CASES: dict[str, dict[str, str]] = {
    "no BLS call": {},
    "guard before": {"OPENAI_BLS_GUARD_BEFORE": "guard"},
    "guard before and after": {"OPENAI_BLS_GUARD_BEFORE": "guard", "OPENAI_BLS_GUARD_AFTER": "guard"},
}
"""Environment of the server by case, the one without a call first."""


@dataclass
class Costs:
    """What was measured of one case."""

    whole_ms: list[float] = field(default_factory=list)
    """Milliseconds of each single request, not streamed."""
    first_ms: list[float] = field(default_factory=list)
    """Milliseconds to the first text of each single stream."""
    rates: list[float] = field(default_factory=list)
    """Requests/s of each round, with `_AT_A_TIME` at a time, not streamed."""
    cpu_ms: list[float] = field(default_factory=list)
    """CPU milliseconds of the server per request of those."""


class Case:
    """A running server and what was measured of it."""

    def __init__(self, server: RunningServer) -> None:
        self.costs = Costs()
        self._pid = server.pid
        limits = httpx.Limits(max_connections=_AT_A_TIME, max_keepalive_connections=_AT_A_TIME)
        self._client = httpx.Client(base_url=server.openai_url, timeout=60, limits=limits)

    def single(self) -> None:
        """One whole answer and one stream."""
        began = time.perf_counter()
        self._whole()
        self.costs.whole_ms.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        with self._client.stream("POST", "/chat/completions", json={**_BODY, "stream": True}) as response:
            pieces = response.iter_raw()
            head = next(pieces)
            first = time.perf_counter()
            text = head + b"".join(pieces)
        assert text.endswith(b"data: [DONE]\n\n"), text
        self.costs.first_ms.append((first - began) * 1000)

    def several(self, pool: ThreadPoolExecutor, count: int) -> None:
        """Whole answers, some at a time."""
        before, began = sample_cpu(self._pid), time.perf_counter()
        for _ in pool.map(lambda _: self._whole(), range(count)):
            pass
        seconds = time.perf_counter() - began
        self.costs.rates.append(count / seconds)
        self.costs.cpu_ms.append(sum(cpu_used(before, sample_cpu(self._pid)).values()) / count * 1000)

    def _whole(self) -> None:
        response = self._client.post("/chat/completions", json=_BODY)
        assert response.json()["usage"]["completion_tokens"] == _TOKENS, response.text


def measure(cases: Sequence[Case], singles: int, rounds: int, count: int) -> None:
    """Everything, in turns."""
    for at in range(_WARM_UP + singles):
        if at == _WARM_UP:
            for case in cases:
                case.costs = Costs()
        for case in cases:
            case.single()
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for _ in range(rounds):
            for case in cases:
                case.several(pool, count)


def table(costs: dict[str, Costs]) -> str:
    """Single requests by the 10th percentile and the median, and what is added to the first case's; all at once by the
    median."""
    headers = ["", "whole, ms", "added", "first text, ms", "added", f"{_AT_A_TIME} at a time, req/s", "CPU ms"]
    plain = next(iter(costs.values()))
    lines = []
    for name, cost in costs.items():
        line = [name]
        for values, base in ((cost.whole_ms, plain.whole_ms), (cost.first_ms, plain.first_ms)):
            (low, middle), (low_base, middle_base) = _middle(values), _middle(base)
            line += [f"{low:.2f} / {middle:.2f}", f"{low - low_base:.2f} / {middle - middle_base:.2f}"]
        lines.append([*line, f"{statistics.median(cost.rates):,.0f}", f"{statistics.median(cost.cpu_ms):.2f}"])
    return markdown_table(headers, lines)


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """10th percentile and median."""
    return statistics.quantiles(values, n=10)[0], statistics.median(values)


def section(made: Conditions, costs: dict[str, Costs], singles: int, rounds: int, count: int) -> str:
    """The section of RESULTS.md."""
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    return f"""## What a BLS call costs a request

`{made.command}`

{made.date}, {made.cores} cores ({made.cpu_model}), load average before {made.load_before}. {versions}.

Chat completions on /v1 of {_TOKENS} tokens by the null engine, as fast as possible. Each case has a server of its own,
all run at the same time and are asked in turns. Single requests: 10th percentile / median of {singles}, and what is
added to those without a call; the 10th percentile is nearer to an idle machine. {_AT_A_TIME} at a time, not streamed:
medians of {rounds} rounds of {count}, with the CPU of tritonserver and all its processes per request. The guard is a
Python model that answers `{{}}`, so what is added is the call. After a stream it is asked when the stream has ended.

{table(costs)}
"""


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bls_costs", description=__doc__)
    parser.add_argument("--singles", type=positive, default=600, help="default %(default)s")
    parser.add_argument("--rounds", type=positive, default=7, help="default %(default)s")
    parser.add_argument("--requests", type=positive, default=300, help="of a round (default %(default)s)")
    parser.add_argument("--repository", type=Path, default=_ROOT / "model_repository")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the section, instead of RESULTS.md")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        setup = prepare(options.repository, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        servers = [
            stack.enter_context(run_server(setup.repository, env, [f"--model-repository={_MODELS}"]))
            for env in CASES.values()
        ]
        version = triton_version(servers[0].http_url)
        made = conditions("python -m benchmarks.bls_costs", {"tritonserver": version})
        cases = [Case(server) for server in servers]
        measure(cases, options.singles, options.rounds, options.requests)
    costs = dict(zip(CASES, (case.costs for case in cases), strict=True))
    text = section(made, costs, options.singles, options.rounds, options.requests)
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    else:
        document = _RESULTS.read_text(encoding="utf-8")
        _RESULTS.write_text(with_section(document, "bls-costs", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
