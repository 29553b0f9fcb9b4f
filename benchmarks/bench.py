"""One contender's running server with what was learned of it, and the measuring of single cells on it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from benchmarks.cells import Cell, MemorySample, Results, Stage
from benchmarks.contenders.servers import Contender, Running, Setup
from benchmarks.driver import Clients, measure
from benchmarks.memory import Peak, sample_memory
from benchmarks.probe import Probe, probe
from benchmarks.stats import Measurement, nothing_measured
from benchmarks.target import Layout, Plan, Target, prompt_text

_MANY = 1_000_000
# Many steps, so that the engine is idle when a request comes: its pace hides nothing of the way there, and it has no
# steps to make up for.
_PAUSE_S = 0.1
_SAMPLE_WORDS = 1_000


@dataclass(frozen=True)
class Shape:
    """How much is measured, and of what."""

    levels: tuple[int, ...]
    """Requests in progress at the same time, in the stage `throughput`."""
    seconds: float
    """For a cell; what is in progress then is waited for."""
    prompt_tokens: int
    """About, those of a chat template included."""
    output_tokens: int
    """Exactly."""
    step_delay_ms: float
    """Of the stages with a pace."""
    paced_level: int
    singles: int
    """Requests of the stage `first token`."""
    crowd: int
    """Streams at the same time in the stage `crowd`."""
    long_prompt_tokens: int
    timeout_s: float = 120.0
    """Seconds for a request."""
    stall_s: float = 10.0
    """Seconds without any data on any stream after which a cell has failed."""


@dataclass(frozen=True)
class Task:
    """One cell to measure."""

    stage: Stage
    path: str
    level: int


class Bench:
    """A running server of `contender`.

    Args:
        results: what is found goes there.
        number: of the round.
    """

    def __init__(
        self,
        contender: Contender,
        server: Running,
        setup: Setup,
        shape: Shape,
        clients: Clients,
        results: Results,
        number: int,
    ) -> None:
        self.contender = contender
        self.server = server
        self.shape = shape
        self._setup = setup
        self._clients = clients
        self._results = results
        self._number = number
        self._learned: dict[str, Probe] = {}

    def warm_up(self) -> None:
        """Learn what each path's streams look like, and make a few requests.

        Raises:
            ProbeError: a path does not answer as it should.
            OSError: the server cannot be reached.
        """
        for path in self.contender.paths:
            self._learned[path] = self._learn(self.server.targets[path])
            self._clients.drive(replace(self.plan(path, 8, requests=16), output_tokens=16))

    def _learn(self, target: Target) -> Probe:
        if target.dialect == "openai":
            return probe(target, self.shape.prompt_tokens)
        if target.dialect == "ids":
            return Probe(Layout(), self.shape.prompt_tokens)
        return Probe(Layout(), self.words(self.shape.prompt_tokens))

    def words(self, tokens: int) -> int:
        """How many words make about `tokens` tokens, special tokens and templates left aside."""
        return words_for(tokens, Tokenizer.from_file(str(self._setup.tokenizer)))

    def plan(self, path: str, level: int, *, requests: int = _MANY, seed: int = 0) -> Plan:
        """A plan for `path`."""
        learned = self._learned[path]
        return Plan(
            target=self.server.targets[path],
            concurrency=level,
            requests=requests,
            prompt_words=learned.prompt_words,
            output_tokens=self.shape.output_tokens,
            layout=learned.layout,
            timeout_s=self.shape.timeout_s,
            stall_s=self.shape.stall_s,
            seed=seed,
        )

    def measure(self, task: Task) -> Measurement:
        """Measure one cell; what cannot be measured is a cell whose requests have all failed."""
        label = self.contender.label(task.path)
        plan = self._plan_of(task)
        try:
            if task.stage == "crowd":
                one = self._measure_crowd(label, plan)
            else:
                one = measure(self._clients, label, plan, self.server.pid)
        except OSError as error:
            one = nothing_measured(label, task.level, task.level, f"the server is gone: {error}")
        self._results.cells.append(Cell(task.stage, self._number, one))
        return one

    def _plan_of(self, task: Task) -> Plan:
        if task.stage == "first token":
            plan = self.plan(task.path, task.level, requests=self.shape.singles, seed=self._number)
            return replace(plan, output_tokens=4, pause_s=_PAUSE_S)
        if task.stage == "crowd":
            return self.plan(task.path, task.level, requests=task.level, seed=self._number)
        return replace(self.plan(task.path, task.level, seed=self._number), seconds=self.shape.seconds)

    def _measure_crowd(self, label: str, plan: Plan) -> Measurement:
        pid = self.server.pid
        if pid is None:
            return measure(self._clients, label, plan, None)
        with Peak(pid) as peak:
            one = measure(self._clients, label, plan, pid)
        sample = MemorySample(self.contender.name, self._number, label, plan.concurrency, peak.memory)
        self._results.memory.append(sample)
        return one

    def remember_memory(self, moment: str) -> None:
        """Take a sample of the memory of the server's processes, with no requests in progress."""
        if self.server.pid is not None:
            processes = sample_memory(self.server.pid)
            self._results.memory.append(MemorySample(self.contender.name, self._number, moment, 0, processes))


def words_for(tokens: int, tokenizer: Tokenizer) -> int:
    """How many of a benchmark prompt's words make about `tokens` tokens."""
    text = prompt_text(_SAMPLE_WORDS, random.Random(0))
    return max(1, round(tokens * _SAMPLE_WORDS / len(tokenizer.encode(text).ids)))
