"""Stages of `benchmarks.serve_layer`: one contender's server at a time, one round at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.clients.driver import Clients, ProbeError, measure, warm_up
from benchmarks.clients.stats import Measurement, nothing_measured
from benchmarks.clients.target import Plan, words_for
from benchmarks.contenders.servers import Contender, Running, Setup, running
from benchmarks.serve_layer.cells import Cell, Results, Shape, Stage
from openai_bls.launcher.errors import LaunchError

_MANY = 1_000_000
# Many steps, so that the engine is idle when a request comes: its pace hides nothing of the time to the first token,
# and it has no steps to make up for.
_PAUSE_S = 0.1


@dataclass(frozen=True)
class Task:
    """One cell to measure."""

    stage: Stage
    path: str
    level: int


@dataclass
class Bench:
    """A running server of `contender`."""

    contender: Contender
    server: Running
    setup: Setup
    shape: Shape
    clients: Clients
    results: Results
    number: int
    """Of the round."""

    def __post_init__(self) -> None:
        words = words_for(self.shape.prompt_tokens, self.setup.tokenizer)
        self._words = dict.fromkeys(self.contender.paths, words)

    def warm_up(self) -> None:
        """Make a few requests on each path, which tell the length of its prompts.

        Raises:
            ProbeError: a path does not answer as it should.
            OSError: the server cannot be reached.
        """
        for path in self.contender.paths:
            plan = replace(self.plan(path, 8, requests=16), output_tokens=16)
            self._words[path] = warm_up(self.clients, plan, self.shape.prompt_tokens)

    def plan(self, path: str, level: int, *, requests: int = _MANY) -> Plan:
        """A plan for `path`."""
        return Plan(
            target=self.server.targets[path],
            concurrency=level,
            requests=requests,
            prompt_words=self._words[path],
            output_tokens=self.shape.output_tokens,
            timeout_s=self.shape.timeout_s,
            stall_s=self.shape.stall_s,
            seed=self.number,
        )

    def measure(self, task: Task) -> Measurement:
        """Measure one cell; one that cannot be measured is a cell whose requests have all failed."""
        label = self.contender.label(task.path)
        plan = self.plan(task.path, task.level)
        if task.stage == "first token":
            plan = replace(plan, requests=self.shape.singles, output_tokens=4, pause_s=_PAUSE_S)
        elif task.stage == "crowd":
            plan = replace(plan, requests=task.level)
        else:
            plan = replace(plan, seconds=self.shape.seconds)
        try:
            one = measure(self.clients, label, plan, self.server.pid)
        except OSError as error:
            one = nothing_measured(label, task.level, f"the server is gone: {error}")
        self.results.cells.append(Cell(task.stage, self.number, one))
        return one


@dataclass
class Session:
    """One run: the clients, the parts that all servers share, and the results so far."""

    clients: Clients
    setup: Setup
    shape: Shape
    results: Results
    say: Callable[[str], None]

    def fast(self, contender: Contender, number: int, *, throughput: bool, crowd: bool) -> None:
        """Round `number` of the stages in which the engine is as fast as it can be."""
        levels = self.shape.levels if throughput else ()
        tasks = [Task("throughput", path, level) for path in contender.paths for level in levels]
        if crowd:
            tasks += [Task("crowd", path, self.shape.crowd) for path in contender.paths]
        self._measure(contender, number, 0.0, tasks)

    def paced(self, contender: Contender, number: int) -> None:
        """Round `number` of the stages with a pace."""
        tasks = [Task("first token", path, 1) for path in contender.paths]
        tasks += [Task("paced", path, self.shape.paced_level) for path in contender.paths]
        self._measure(contender, number, self.shape.step_delay_ms, tasks)

    def _measure(self, contender: Contender, number: int, delay_ms: float, tasks: Sequence[Task]) -> None:
        """Measure `tasks` on one server, and on a new one after each task that fails."""
        left = list(tasks)
        while left:
            before = len(left)
            try:
                with self._server(contender, number, delay_ms) as bench:
                    self._until_failure(bench, left, number)
            except (LaunchError, OSError, ProbeError) as error:
                self._note(number, contender, str(error))
                if len(left) == before:
                    # It did not even start: another try would do no better.
                    reason = f"no server: {_first_line(error)}"
                    for task in left:
                        nothing = nothing_measured(contender.label(task.path), task.level, reason)
                        self.results.cells.append(Cell(task.stage, number, nothing))
                    return

    def _until_failure(self, bench: Bench, left: list[Task], number: int) -> None:
        """Measure tasks and take them off `left`; after one that fails the server is not to be used any more."""
        while left:
            task = left.pop(0)
            one = bench.measure(task)
            self.say(f"round {number}: {progress(task, one)}")
            if one.failed:
                bench.server.kill()
                return

    @contextlib.contextmanager
    def _server(self, contender: Contender, number: int, delay_ms: float) -> Iterator[Bench]:
        """A server that has been warmed up."""
        with running(contender, self.setup, delay_ms) as server:
            if server.version:
                self.results.versions["tritonserver"] = server.version
            bench = Bench(contender, server, self.setup, self.shape, self.clients, self.results, number)
            bench.warm_up()
            yield bench

    def _note(self, number: int, contender: Contender, text: str) -> None:
        self.results.notes.append(f"round {number}: {contender.name}: {_first_line(text)}")
        self.say(self.results.notes[-1])


def progress(task: Task, one: Measurement) -> str:
    """A line about a cell."""
    figures = f"{one.tokens_per_s:,.0f} tokens/s"
    if task.stage == "first token":
        figures = f"first token after {one.first_token_ms_p50:.2f} ms"
    elif task.stage == "paced":
        figures = f"inter-token p99 {one.gap_ms_p99:.2f} ms, {figures}"
    failed = f", {one.failed} FAILED: {next(iter(one.failures))}" if one.failed else ""
    return f"{one.path} at {one.concurrency} ({task.stage}): {figures}, {one.requests} requests{failed}"


def _first_line(text: object) -> str:
    return str(text).partition("\n")[0]
