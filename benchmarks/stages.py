"""Stages of `benchmarks.serve_layer`: one contender's server at a time, one round at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import Cell, LongPrompt, MemorySample, Results, Shape, Stage
from benchmarks.contenders.servers import V1, Contender, Running, Setup, running
from benchmarks.driver import Clients, ProbeError, make_requests, measure, warm_up
from benchmarks.processes import Peak, sample_memory
from benchmarks.stats import ClientReport, Measurement, analyse, nothing_measured, percentile_ms
from benchmarks.target import Plan, words_for
from benchmarks.traces import Trace
from openai_bls.launcher.errors import LaunchError

_MANY = 1_000_000
# Many steps, so that the engine is idle when a request comes: its pace hides nothing of the time to the first token,
# and it has no steps to make up for.
_PAUSE_S = 0.1
_STREAMS = 32
"""Streams beside long prompts."""
_PROMPTS = 4
_SETTLE_S = 0.8
"""Seconds until all streams have begun and run evenly."""
_QUIET_S = 0.5
"""Seconds from one long prompt to the next."""
_PROMPT_S = 0.6
"""Seconds that a long prompt takes at the worst: the streams must outlast it."""

Window = tuple[float, float]


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
        self._words = dict.fromkeys(self.contender.paths, self.words(self.shape.prompt_tokens))

    def warm_up(self) -> None:
        """Make a few requests on each path, which tell the length of its prompts.

        Raises:
            ProbeError: a path does not answer as it should.
            OSError: the server cannot be reached.
        """
        for path in self.contender.paths:
            plan = replace(self.plan(path, 8, requests=16), output_tokens=16)
            self._words[path] = warm_up(self.clients, plan, self.shape.prompt_tokens)

    def words(self, tokens: int) -> int:
        """Words that make about `tokens` tokens, special tokens and templates left aside."""
        return words_for(tokens, self.setup.tokenizer)

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
        pid = self.server.pid
        watch = Peak(pid) if task.stage == "crowd" and pid is not None else None
        try:
            with watch or contextlib.nullcontext():
                one = measure(self.clients, label, plan, pid)
        except OSError as error:
            one = nothing_measured(label, task.level, f"the server is gone: {error}")
        if watch is not None:
            self.results.memory.append(
                MemorySample(self.contender.name, self.number, label, plan.concurrency, watch.memory)
            )
        self.results.cells.append(Cell(task.stage, self.number, one))
        return one

    def remember_memory(self, moment: str) -> None:
        """Take a sample of the memory of the server's processes, with no requests in progress."""
        if self.server.pid is not None:
            processes = sample_memory(self.server.pid)
            self.results.memory.append(MemorySample(self.contender.name, self.number, moment, 0, processes))

    def long_prompts(self) -> LongPrompt:
        """Run some streams, and beside them send very long prompts one after another, from this process.

        Raises:
            OSError: the server cannot be reached.
        """
        length_s = _SETTLE_S + _QUIET_S + _PROMPTS * (_QUIET_S + _PROMPT_S)
        tokens = max(1, round(length_s * 1000 / max(self.shape.step_delay_ms, 1.0)))
        streams = replace(self.plan(V1, _STREAMS, requests=_STREAMS), output_tokens=tokens)
        words = self.words(self.shape.long_prompt_tokens)
        prompt = replace(self.plan(V1, 1, requests=1), prompt_words=words, output_tokens=1)
        begun = time.monotonic()
        future = self.clients.start(streams)
        time.sleep(_SETTLE_S)
        traces: list[Trace] = []
        cpu_s = 0.0
        # The streams may begin late on a busy machine: prompts go on for as long as they do.
        while len(traces) < _PROMPTS or not future.done():
            time.sleep(_QUIET_S)
            made, used = make_requests(replace(prompt, seed=1000 * self.number + len(traces)))
            traces, cpu_s = traces + made, cpu_s + used
        beside, alone = future.result(), analyse(traces, prompt, cpu_s)
        windows = [(trace.started, trace.ended) for trace in traces]
        within, quiet = split_gaps(beside, windows, begun + _SETTLE_S)
        return LongPrompt(
            path=self.contender.label(V1),
            round=self.number,
            streams=_STREAMS,
            prompt_tokens=alone.prompt_tokens // max(len(alone.first_token), 1),
            first_token_ms=percentile_ms(alone.first_token, 50),
            quiet_gap_ms_p99=percentile_ms(quiet, 99),
            gap_ms_p99=percentile_ms(within, 99),
            gap_ms_max=percentile_ms(within, 100),
            gaps=len(within),
            failures=dict(beside.failures + alone.failures),
        )


def split_gaps(
    report: ClientReport, windows: list[Window], settled: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The gaps that lie within one of `windows`, if only in part, and those after `settled` that do not."""
    begins, ends = report.gap_ends - report.gaps, report.gap_ends
    within = np.zeros(len(ends), dtype=bool)
    for start, end in windows:
        within |= (begins < end) & (ends > start)
    return report.gaps[within], report.gaps[~within & (begins > settled)]


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

    def long_prompt(self, contender: Contender, number: int) -> None:
        """Round `number` of long prompts beside paced streams, on /v1."""
        try:
            with self._server(contender, number, self.shape.step_delay_ms) as bench:
                found = bench.long_prompts()
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
