"""Overload and fairness, in one run: `python -m benchmarks.serve_layer.overload`.

The engine is the null engine at a pace, with a delay of first tokens, as prompts would be. Goodput:
requests arrive at random (open loop, no retries) at the rate that the server was measured to have and at ten times
that rate, each with a timeout; what counts are answers in time, by the server's clock and by the client's. Fairness:
the time to first token of a key, alone and beside many streams of another key, and, for comparison, of one more request
of that other key. Each ratio is of one round, what is concluded of the median of the rounds: a machine that is busy for
a while spoils a round, and where it spoils more the tables say so. Prints them in Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks.clients.driver import exit_on_sigterm
from benchmarks.clients.processes import CpuSample, cpu_used, sample_cpu
from benchmarks.contenders.servers import prepare
from benchmarks.support import ROOT
from benchmarks.support.machine import conditions
from benchmarks.support.options import positive
from benchmarks.support.report import markdown_table
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.testing import RunningServer, run_server

KEYS = "alone: alone\nmany: many\n"
_FAIRNESS_PACE = {"STEP": 30, "FIRST_TOKEN": 100}
_GOODPUT_PACE = {"STEP": 10, "FIRST_TOKEN": 50}
"""Milliseconds of a step, and more of a first token."""
_ANSWER_TOKENS = (32, 96)
"""Fewest and most tokens of an answer, equally likely between, where fairness is measured."""
_GOODPUT_TOKENS = (64, 64)
"""The same for goodput: an engine does more answers in a second if the long ones are refused."""
_PROBE_TOKENS = (2, 2)
"""The same for requests of which the first token counts."""
_TIMEOUT_S = 3.0
"""Of each request, where goodput is measured: about four times what the engine takes for one."""
_SETTLE_S = 2.5
"""Seconds at a new load that do not count."""


@dataclass
class Answer:
    """End of one request; times of `time.monotonic()`."""

    began_at: float
    status: int = 0
    first_at: float = 0.0
    """First event of a stream."""
    ended_at: float = 0.0


@dataclass
class Load:
    """Answers at one rate of arrivals, that came in a window of so many seconds."""

    rate: float
    seconds: float
    answers: list[Answer] = field(default_factory=list)
    lag_s: float = 0.0
    """Seconds by which the median request was sent later than it was due."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the window, of `openai_bls` and of the client."""

    @property
    def goodput(self) -> float:
        """Answers per second within the timeout, by the server's clock: it answers 504 to the others."""
        return self.statuses[200] / self.seconds

    @property
    def clients_goodput(self) -> float:
        """The same by the client's clock, from the time at which a request was due: what waits for a processor before
        the server reads it, or after it has answered, is not in the server's."""
        in_time = [a for a in self.answers if a.status == 200 and a.ended_at - a.began_at <= _TIMEOUT_S]
        return len(in_time) / self.seconds

    @property
    def statuses(self) -> Counter[int]:
        """Number of answers by status."""
        return Counter(answer.status for answer in self.answers)


@dataclass
class Round:
    """Loads that were measured after each other."""

    capacity: float
    """Answers per second while there is always one more, without timeouts."""
    usual: Load
    heavy: Load

    @property
    def share(self) -> float:
        """Goodput under the heavy load, of the highest measured."""
        return self.heavy.goodput / max(self.capacity, self.usual.goodput, self.heavy.goodput, 1e-9)

    @property
    def refusal_us(self) -> float:
        """CPU microseconds of `openai_bls` for each 429: what it had to do more than under the usual load."""
        refused = self.heavy.statuses[429] / self.heavy.seconds
        more = self.heavy.cpu_s["openai_bls"] / self.heavy.seconds - self.usual.cpu_s["openai_bls"] / self.usual.seconds
        return more / refused * 1e6 if refused else 0.0


class Client:
    """Requests to /v1, a connection each.

    Args:
        url: base URL of the API.
        tokens: fewest and most of an answer.
    """

    def __init__(self, url: str, tokens: tuple[int, int]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self.random = random.Random(1)
        self._tokens = tokens

    async def ask(
        self, key: str, *, stream: bool, timeout_s: float | None = None, due_at: float | None = None
    ) -> Answer:
        """One completion, which was to be asked for at `due_at`."""
        body = msgspec.json.encode(
            {"prompt": "one two three", "max_tokens": self.random.randint(*self._tokens), "stream": stream,
             "ignore_eos": True, "timeout": timeout_s}
        )  # fmt: skip
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        answer = Answer(time.monotonic() if due_at is None else due_at)
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(head.encode() + body)
            answer.status = int((await reader.readuntil(b"\r\n")).split()[1])
            await reader.readuntil(b"\r\n\r\n")
            await reader.read(1)
            answer.first_at = time.monotonic()
            while await reader.read(1 << 16):
                pass
            answer.ended_at = time.monotonic()
        finally:
            writer.transport.abort()
        return answer


async def saturated_rate(client: Client, batch: int, seconds: float) -> float:
    """Answers per second while twice as many requests are there as the engine takes at once."""
    ended = 0

    async def ask_on() -> None:
        nonlocal ended
        while True:
            await client.ask("alone", stream=False)
            ended += 1

    tasks = [asyncio.create_task(ask_on()) for _ in range(2 * batch)]
    await asyncio.sleep(_SETTLE_S)
    ended = 0
    await asyncio.sleep(seconds)
    await cancel(tasks)
    return ended / seconds


async def at_rate(client: Client, rate: float, seconds: float, pid: int) -> Load:
    """Requests that arrive at random, `rate` in a second; `pid` is the server's."""
    answers: list[Answer] = []
    lags: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    before: tuple[CpuSample, float] | None = None

    async def ask(due_at: float) -> None:
        lags.append(time.monotonic() - due_at)
        answers.append(await client.ask("alone", stream=False, timeout_s=_TIMEOUT_S, due_at=due_at))

    began = due = time.monotonic()
    while due - began < _SETTLE_S + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if before is None and due - began >= _SETTLE_S:
            before = sample_cpu(pid), time.process_time()
        task = asyncio.create_task(ask(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += client.random.expovariate(rate)
    # A busy machine may be late with its arrivals.
    ended = time.monotonic()
    cpu_s: dict[str, float] = {"openai_bls": 0.0}
    if before is not None:
        cpu_s |= cpu_used(before[0], sample_cpu(pid)) | {"client": time.process_time() - before[1]}
    await asyncio.gather(*tasks)
    window = began + _SETTLE_S
    kept = [answer for answer in answers if window <= answer.ended_at < ended]
    return Load(rate, ended - window, kept, statistics.median(lags), cpu_s)


async def first_tokens(client: Client, key: str, count: int) -> list[float]:
    """Milliseconds to the first token of requests that follow each other.

    Raises:
        LaunchError: one was refused.
    """
    times = []
    for _ in range(count):
        answer = await client.ask(key, stream=True)
        if answer.status != 200:
            raise LaunchError(f"a request of the key {key!r} was answered {answer.status}")
        times.append((answer.first_at - answer.began_at) * 1000)
        # Not in step with the engine.
        await asyncio.sleep(client.random.uniform(0, 0.05))
    return times


async def beside(url: str, streams: int, count: int, *, same: bool) -> dict[str, list[float]]:
    """Milliseconds to the first token, alone and beside streams of another key, and, if asked for, of the same one."""
    client, probe = Client(url, _ANSWER_TOKENS), Client(url, _PROBE_TOKENS)

    async def ask_on() -> None:
        while True:
            await client.ask("many", stream=True)

    times = {"alone": await first_tokens(probe, "alone", count)}
    tasks = [asyncio.create_task(ask_on()) for _ in range(streams)]
    await asyncio.sleep(_SETTLE_S)
    times["beside"] = await first_tokens(probe, "alone", count)
    if same:
        times["of the same key"] = await first_tokens(probe, "many", 1)
    await cancel(tasks)
    return times


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End the clients, and wait for the server to notice."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(1)


async def fairness(server: RunningServer, options: argparse.Namespace) -> str:
    """Times to first tokens, as a table."""
    return fairness_table(
        [
            await beside(server.openai_url, options.streams, options.requests, same=not index)
            for index in range(options.rounds)
        ]
    )


async def goodput(server: RunningServer, options: argparse.Namespace) -> str:
    """Answers in time at each load, as a table."""
    client = Client(server.openai_url, _GOODPUT_TOKENS)
    rounds: list[Round] = []
    for _ in range(options.rounds):
        capacity = await saturated_rate(client, options.goodput_batch, options.seconds)
        loads = [await at_rate(client, capacity * times, options.seconds, server.pid) for times in (1, options.factor)]
        rounds.append(Round(capacity, *loads))
    return goodput_table(rounds, options.factor)


def fairness_table(rounds: Sequence[dict[str, list[float]]]) -> str:
    """One row per situation and round, and the median of the rounds' ratios."""
    rows, ratios = [], []
    for number, times in enumerate(rounds, 1):
        base = statistics.median(times["alone"])
        ratios.append(statistics.median(times["beside"]) / base)
        rows += [
            (str(number), name, f"{statistics.median(values):,.0f}", f"{max(values):,.0f}",
             f"{statistics.median(values) / base:.2f}")
            for name, values in times.items()
        ]  # fmt: skip
    table = markdown_table(("round", "time to first token", "ms p50", "ms most", "times alone"), rows)
    return f"{table}\n\nTime to first token next to the other key's streams: {_median(ratios)} times that alone."


def goodput_table(rounds: Sequence[Round], factor: int) -> str:
    """One row per load, in the order of the measurements, and the median of the rounds' ratios."""
    rows = [
        (str(number), f"{load.rate:,.0f}", f"{load.goodput:,.1f}", f"{load.clients_goodput:,.1f}",
         ", ".join(f"{count} × {status}" for status, count in sorted(load.statuses.items())),
         f"{load.lag_s * 1000:,.0f}", f"{sum(load.cpu_s.values()) / load.seconds:.2f}")
        for number, measured in enumerate(rounds, 1)
        for load in (measured.usual, measured.heavy)
    ]  # fmt: skip
    table = markdown_table(
        (
            "round",
            "arrivals/s",
            "in time/s, server's clock",
            "client's clock",
            "statuses",
            "sent late by ms p50",
            "CPUs",
        ),
        rows,
    )
    capacity = statistics.median(measured.capacity for measured in rounds)
    refusal_us = statistics.median(measured.refusal_us for measured in rounds)
    return (
        f"{table}\n\nCapacity {capacity:,.1f} answers/s. Goodput at {factor} times that is "
        f"{_median([measured.share for measured in rounds])} of the peak. A 429 costs `openai_bls` "
        f"{refusal_us:,.0f} µs of CPU time."
    )


def _median(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_layer.overload", description=__doc__)
    parser.add_argument("--batch", type=positive, default=64, help="sequences of the engine (default %(default)s)")
    parser.add_argument(
        "--goodput-batch",
        type=positive,
        default=8,
        help="the same where goodput is measured: ten times what it can do is to be no matter of CPU time (default "
        "%(default)s)",
    )
    parser.add_argument("--streams", type=positive, default=500, help="of the other key (default %(default)s)")
    parser.add_argument("--requests", type=positive, default=20, help="to a first token (default %(default)s)")
    parser.add_argument("--seconds", type=positive, default=6, help="at each rate (default %(default)s)")
    parser.add_argument("--factor", type=positive, default=10, help="of the overload (default %(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, help="(default %(default)s)")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    before = conditions("")
    print(f"{before.date}, {before.cores} cores, load {before.load_before} before")
    with tempfile.TemporaryDirectory() as scratch:
        keys = Path(scratch) / "keys"
        keys.write_text(KEYS)
        repository = prepare(ROOT / "model_repository", Path(scratch)).repository
        for measure, batch, pace in (
            (fairness, options.batch, _FAIRNESS_PACE),
            (goodput, options.goodput_batch, _GOODPUT_PACE),
        ):
            environment = {
                "OPENAI_BLS_ENGINE": "null",
                "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": str(batch),
                **{f"OPENAI_BLS_ENGINE_NULL_{name}_DELAY_MS": str(ms) for name, ms in pace.items()},
                "OPENAI_BLS_API_KEYS_FILE": str(keys),
            }
            with run_server(repository, environment) as server:
                print("\n" + asyncio.run(measure(server, options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
