"""Servers that start one after the other and stay, and rounds over all loads in which they take turns."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.clients.driver import Clients, measure
from benchmarks.clients.stats import Measurement, nothing_measured
from benchmarks.clients.target import Plan, words_for
from benchmarks.support.machine import Conditions
from benchmarks_vllm.vllm_serve.death import Death, kill_worker
from benchmarks_vllm.vllm_serve.engine_settings import engine_settings
from benchmarks_vllm.vllm_serve.loads import Load
from benchmarks_vllm.vllm_serve.servers import OVER_VLLM, SERVERS, Serving, Setup

_WARM_UP_TOKENS = 32
_NOT_NONE = [field.name for field in fields(Measurement) if field.type == "float"]


@dataclass(frozen=True)
class Cell:
    """One server under one load, once."""

    server: str
    load: str
    round: int
    result: Measurement


@dataclass
class Results:
    """Everything measured so far."""

    made: Conditions
    arguments: dict[str, Any]
    """Engine arguments of both vLLMs."""
    loads: list[str]
    ready_s: dict[str, float] = field(default_factory=dict)
    """Start of each server, by its name."""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """Settings of each vLLM's engine by its log, by the server's name."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why a server is missing, by its name."""
    cells: list[Cell] = field(default_factory=list)
    death: Death | None = None
    """Of a worker behind /v1, at the end."""

    def found(self, server: str, load: str) -> list[Measurement]:
        """The rounds of one cell."""
        return [cell.result for cell in self.cells if (cell.server, cell.load) == (server, load)]


@dataclass(frozen=True)
class Amounts:
    """How much is asked."""

    loads: Sequence[Load]
    prompt_tokens: int
    output_tokens: int
    rounds: int
    until: float
    """By the monotonic clock: no round is begun that would not end before."""


class Session:
    """The run of all servers.

    Args:
        clients: the client's process.
        setup: what the servers have in common.
        amounts: how much is asked.
        results: where everything goes.
        save: called after every measurement.
        say: called with a line of progress.
    """

    def __init__(
        self,
        clients: Clients,
        setup: Setup,
        amounts: Amounts,
        results: Results,
        save: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._clients = clients
        self._setup = setup
        self._amounts = amounts
        self._results = results
        self._save = save
        self._say = say
        tokenizer = setup.checkpoint / "tokenizer.json"
        self._words_per_token = words_for(1000, tokenizer) / 1000
        self._words: dict[str, int] = {}
        """Words of a prompt in a closed loop, by server."""

    def run(self, names: Sequence[str], *, together: bool = False, kill_worker: bool = False) -> None:
        """Start the servers, then do the rounds; a server that does not start or breaks is left out.

        Args:
            names: of the servers.
            together: start them side by side, not one after the other.
            kill_worker: kill one of the workers behind /v1 after that.
        """
        with contextlib.ExitStack() as stack:
            # Its threads stay: processes may end with the thread that started them.
            pool = stack.enter_context(ThreadPoolExecutor(len(names) if together else 1))
            started = list(pool.map(lambda name: self._start(stack, name), names))
            live = [serving for serving in started if serving is not None and self._warmed_up(serving)]
            self._do_rounds(live)
            if kill_worker:
                self._kill(live)

    def _do_rounds(self, live: Sequence[Serving]) -> None:
        longest = 0.0
        for number in range(1, self._amounts.rounds + 1):
            begun = time.monotonic()
            if number > 1 and begun + longest > self._amounts.until:
                self._say(f"no time for round {number}")
                return
            for load in self._amounts.loads:
                # The other way round every second time, so that none always comes after the same other.
                for serving in live[:: 1 if number % 2 else -1]:
                    self._measure(serving, load, number)
            longest = max(longest, time.monotonic() - begun)

    def _kill(self, live: Sequence[Serving]) -> None:
        limit_s = self._setup.limit_s
        try:
            [serving] = [serving for serving in live if serving.name == OVER_VLLM]
            self._results.death = kill_worker(self._clients, serving, self._words[serving.name], limit_s, self._say)
        except Exception as error:  # any: what was measured is still worth having
            self._results.problems["the death of a worker"] = f"{type(error).__name__}: {error}"
        self._save()

    def _start(self, stack: contextlib.ExitStack, name: str) -> Serving | None:
        self._say(f"{name}: starting")
        own = contextlib.ExitStack()
        try:
            serving = own.enter_context(SERVERS[name](self._setup))
        except Exception as error:  # any: the others are still worth measuring
            self._results.problems[name] = f"{type(error).__name__}: {error}"
            self._say(f"{name}: {self._results.problems[name]}")
            self._save()
            with contextlib.suppress(Exception):
                own.close()
            return None
        stack.push(own.__exit__)
        self._results.ready_s[name] = serving.ready_s
        if settings := engine_settings(serving.log):
            self._results.settings[name] = settings
        self._say(f"{name}: ready after {serving.ready_s:.0f} s")
        self._save()
        return serving

    def _warmed_up(self, serving: Serving) -> bool:
        """True if the server has come through its warm-up."""
        try:
            self._warm_up(serving)
        except Exception as error:  # any: the others are still worth measuring
            self._results.problems[serving.name] = f"{type(error).__name__}: {error}"
            self._say(f"{serving.name}: {self._results.problems[serving.name]}")
            self._save()
            return False
        return True

    def _warm_up(self, serving: Serving) -> None:
        """Have the server compile what it compiles at first requests: all levels, JSON, long prompts.

        Raises:
            OSError: the server cannot be reached.
        """
        words = self._words[serving.name] = round(self._amounts.prompt_tokens * self._words_per_token)
        for load in self._amounts.loads:
            plan = load.plan(serving.target, words, self._words_per_token, _WARM_UP_TOKENS, seed=1000)
            if plan.arrivals is not None:
                plan = Plan(serving.target, 4, 4, 8 * words, _WARM_UP_TOKENS, seed=1000)
            if load.prompt_tokens:
                plan = replace(plan, concurrency=4, requests=4, output_tokens=_WARM_UP_TOKENS)
            plan = replace(plan, requests=min(plan.requests, 2 * plan.concurrency))
            report = self._clients.drive(plan)
            for failure, count in report.failures.items():
                self._say(f"{serving.name}, {load.name}: {count} requests of the warm-up FAILED: {failure}")
            if load.kind == "streams" and not load.prompt_tokens and not report.failures:
                overhead = round(report.prompt_tokens / report.requests - words / self._words_per_token)
                wanted = max(1, self._amounts.prompt_tokens - overhead)
                self._words[serving.name] = max(1, round(wanted * self._words_per_token))

    def _measure(self, serving: Serving, load: Load, number: int) -> None:
        words, output = self._words[serving.name], self._amounts.output_tokens
        plan = load.plan(serving.target, words, self._words_per_token, output, number)
        try:
            one = measure(self._clients, serving.name, plan, serving.pid)
        except OSError as error:
            one = nothing_measured(serving.name, load.concurrency, f"the server is gone: {error}")
        self._results.cells.append(Cell(serving.name, load.name, number, one))
        failed = f", {one.failed} FAILED: {', '.join(one.failures)}" if one.failed else ""
        cpu = one.server_cpu_per_1k
        self._say(
            f"round {number}, {load.name}, {serving.name}: {one.tokens_per_s:,.0f} tokens/s, TTFT "
            f"{one.first_token_ms_p50:.1f} / {one.first_token_ms_p99:.1f}, ITL {one.gap_ms_p50:.2f} / "
            f"{one.gap_ms_p99:.1f} ms, CPU {cpu or 0:.3f} s per 1,000 tokens{failed}"
        )
        self._save()


def read(path: Path) -> Results:
    """Results that `write` wrote."""
    found = msgspec.json.decode(path.read_bytes())
    for cell in found["cells"]:
        # JSON has no NaN.
        missing = {name: math.nan for name in _NOT_NONE if cell["result"][name] is None}
        cell["result"] |= missing
    return msgspec.convert(found, Results)


def merged(first: Results, more: Results) -> Results:
    """Results of two runs: loads of the second take the place of those of the same name."""
    command = f"{first.made.command}; {more.made.command}"
    return replace(
        first,
        made=replace(first.made, command=command),
        loads=list(dict.fromkeys([*first.loads, *more.loads])),
        settings=first.settings | more.settings,
        problems=first.problems | more.problems,
        cells=[*(cell for cell in first.cells if cell.load not in more.loads), *more.cells],
    )


def write(results: Results, path: Path) -> None:
    """Write the results as JSON, in one step."""
    aside = path.with_suffix(".new")
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    aside.replace(path)
