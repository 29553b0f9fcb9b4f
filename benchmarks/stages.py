"""The stages of `benchmarks.serve_layer`: one contender's server at a time, one round at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.bench import Bench, Shape, Task
from benchmarks.cells import Cell, Results
from benchmarks.contenders.servers import V1, Contender, Setup, running
from benchmarks.driver import Clients
from benchmarks.longprompt import long_prompts
from benchmarks.probe import ProbeError
from benchmarks.stats import Measurement, nothing_measured
from openai_bls.launcher.errors import LaunchError


@dataclass
class Session:
    """One run: the clients, what all servers share, and what has been found."""

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

    def long_prompt(self, contender: Contender, number: int) -> None:
        """Round `number` of long prompts beside paced streams, on /v1."""
        try:
            with self._server(contender, number, self.shape.step_delay_ms) as bench:
                found = long_prompts(bench, self.clients, number)
        except (LaunchError, OSError, ProbeError) as error:
            self._note(number, contender, f"long prompts: {error}")
            return
        self.results.long_prompts.append(found)
        self.say(
            f"round {number}: {contender.label(V1)}: inter-token p99 {found.gap_ms_p99:.2f} ms beside prompts of "
            f"{found.prompt_tokens:,} tokens, {found.quiet_gap_ms_p99:.2f} ms without"
        )

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
                        nothing = nothing_measured(contender.label(task.path), task.level, task.level, reason)
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
        bench.remember_memory("after the load")

    @contextlib.contextmanager
    def _server(self, contender: Contender, number: int, delay_ms: float) -> Iterator[Bench]:
        """A server that has been warmed up."""
        with running(contender, self.setup, delay_ms) as server:
            if server.version:
                self.results.versions["tritonserver"] = server.version
            bench = Bench(contender, server, self.setup, self.shape, self.clients, self.results, number)
            bench.warm_up()
            bench.remember_memory("before the load")
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
