"""Tables of `benchmarks.serve_layer` for the terminal and for RESULTS.md, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from benchmarks.bench import Shape
from benchmarks.cells import MemorySample, Results, Stage, Value, known_spread
from benchmarks.goals import Goal, cpu, rate, reference
from benchmarks.machine import Conditions
from benchmarks.memory import Memory, total_pss_mb
from benchmarks.report import MISSING, failures, markdown_table, number, process_table, text_table
from benchmarks.stats import Measurement, Spread

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, headers, rows."""

NOTES = (
    "Every contender emits the same tokens at the same pace; clients, requests and counting are the same for all. "
    "Medians of the rounds, with the range; `× bare` is the median of the rounds' ratios to the bare model on the same "
    "transport (/v1: on generate_stream). Tokens are counted from the stream's usage, never from events: openai_bls "
    "may put several tokens into one event when Triton or a client is slower than the engine (tok/event), which the "
    "bare model cannot. CPU ms/1k: CPU milliseconds of tritonserver and all its processes per 1,000 tokens. TTFT: ms "
    "from sending a request to its first text. ITL: ms from one text event to the next of the same request. Single "
    "requests are sent with pauses longer than a step, so that the engine is idle when they come and TTFT is the way "
    "alone. No loss means at least 0.95: the same cell differs by more than the rest from one round to the next. "
    "Clients and server share the machine's cores; others: cores busy with anything else, a disturbance. Tokens/s of a "
    "cell with failed requests are those of its complete streams."
)


def tables(results: Results, goals: Sequence[Goal]) -> Iterator[Table]:
    """All tables, without those that would be empty."""
    verdict = {True: "yes", False: "NO", None: "–"}
    judged = [(goal.name, goal.target, goal.measured, verdict[goal.met]) for goal in goals]
    yield "Goals", ("goal", "target", "measured", "met"), judged
    if results.of("throughput"):
        yield "As fast as possible", THROUGHPUT, list(_throughput(results, "throughput"))
        measured = [one for one in results.of("throughput") if one.concurrency == _process_level(results)]
        headers, rows = process_table(measured)
        if rows:
            yield f"CPU µs a token by process, {_process_level(results)} streams", headers, rows
    if results.of("first token"):
        yield "Single requests", FIRST_TOKEN, list(_first_token(results))
    if results.of("paced"):
        yield "At a pace", PACED, list(_paced(results))
    if results.of("crowd"):
        yield "Very many streams", THROUGHPUT, list(_throughput(results, "crowd"))
    if results.long_prompts:
        yield "Streams beside long prompts", LONG_PROMPT, list(_long_prompt(results))
    if results.memory:
        yield "Memory", MEMORY, list(_memory(results))


def _process_level(results: Results) -> int:
    levels = results.levels("throughput")
    return 64 if 64 in levels else levels[-1]


THROUGHPUT = (
    "path",
    "conc.",
    "requests",
    "failed",
    "tokens/s",
    "(range)",
    "× bare",
    "CPU ms/1k",
    "(range)",
    "× bare",
    "TTFT p50",
    "ITL p99",
    "tok/event",
    "events/s",
    "client CPU ms/1k",
    "others",
)


def _throughput(results: Results, stage: Stage) -> Iterator[list[str]]:
    for path, level in _places(results, stage):
        cell = _Medians(results, stage, path, level)
        yield [
            path,
            str(level),
            f"{sum(one.requests for one in cell.every):,}",
            cell.failed,
            cell.median(rate, 0),
            cell.range(rate, 0),
            cell.against_bare(rate),
            cell.median(_cpu_ms, 1),
            cell.range(_cpu_ms, 1),
            cell.against_bare(cpu),
            cell.median(lambda one: one.first_token_ms_p50, 1),
            cell.median(lambda one: one.gap_ms_p99, 2),
            cell.median(lambda one: one.tokens_per_event, 2),
            cell.median(lambda one: one.events_per_s, 0),
            cell.median(lambda one: 1000 * one.client_cpu_per_1k, 1),
            cell.median(_others, 2),
        ]


FIRST_TOKEN = ("path", "requests", "failed", "TTFT p50", "(range)", "added to bare", "TTFT p99", "others")


def _first_token(results: Results) -> Iterator[list[str]]:
    for path, level in _places(results, "first token"):
        cell = _Medians(results, "first token", path, level)
        yield [
            path,
            f"{sum(one.requests for one in cell.every):,}",
            cell.failed,
            cell.median(lambda one: one.first_token_ms_p50, 2),
            cell.range(lambda one: one.first_token_ms_p50, 2),
            cell.added_to_bare(lambda one: one.first_token_ms_p50),
            cell.median(lambda one: one.first_token_ms_p99, 2),
            cell.median(_others, 2),
        ]


PACED = (
    "path",
    "conc.",
    "failed",
    "ITL p50",
    "ITL p99",
    "(range)",
    "TTFT p50",
    "tokens/s",
    "tok/event",
    "CPU ms/1k",
    "others",
)


def _paced(results: Results) -> Iterator[list[str]]:
    for path, level in _places(results, "paced"):
        cell = _Medians(results, "paced", path, level)
        yield [
            path,
            str(level),
            cell.failed,
            cell.median(lambda one: one.gap_ms_p50, 2),
            cell.median(lambda one: one.gap_ms_p99, 2),
            cell.range(lambda one: one.gap_ms_p99, 2),
            cell.median(lambda one: one.first_token_ms_p50, 2),
            cell.median(rate, 0),
            cell.median(lambda one: one.tokens_per_event, 2),
            cell.median(_cpu_ms, 1),
            cell.median(_others, 2),
        ]


@dataclass(frozen=True)
class _Medians:
    """The cells of one row, over all rounds."""

    results: Results
    stage: Stage
    path: str
    level: int

    @property
    def every(self) -> list[Measurement]:
        return list(self.results.rounds(self.stage, self.path, self.level).values())

    @property
    def failed(self) -> str:
        return f"{sum(one.failed for one in self.every):,}"

    def median(self, value: Value, digits: int) -> str:
        return number(self.results.median(self.stage, self.path, self.level, value), digits)

    def range(self, value: Value, digits: int) -> str:
        return _range(self.results.median(self.stage, self.path, self.level, value), digits)

    def against_bare(self, value: Value) -> str:
        bare = reference(self.path)
        if bare is None:
            return "1"
        here, there = (self.path, self.level), (bare, self.level)
        return number(self.results.compare(self.stage, here, there, value), 2)

    def added_to_bare(self, value: Value) -> str:
        bare = reference(self.path)
        if bare is None:
            return "0"
        here, there = (self.path, self.level), (bare, self.level)
        return number(self.results.compare(self.stage, here, there, value, lambda a, b: a - b), 2)


def _cpu_ms(one: Measurement) -> float | None:
    seconds = one.server_cpu_per_1k
    return None if seconds is None else 1000 * seconds


def _others(one: Measurement) -> float | None:
    return one.others_load


LONG_PROMPT = (
    "path",
    "streams",
    "prompt tokens",
    "TTFT of it",
    "ITL p99 quiet",
    "ITL p99 beside",
    "(range)",
    "ITL max beside",
    "failed",
)


def _long_prompt(results: Results) -> Iterator[list[str]]:
    for path in dict.fromkeys(one.path for one in results.long_prompts):
        found = [one for one in results.long_prompts if one.path == path]
        beside = known_spread(one.gap_ms_p99 for one in found)
        yield [
            path,
            str(found[0].streams),
            f"{found[0].prompt_tokens:,}",
            number(known_spread(one.first_token_ms for one in found), 1),
            number(known_spread(one.quiet_gap_ms_p99 for one in found), 2),
            number(beside, 2),
            _range(beside, 2),
            number(known_spread(one.gap_ms_max for one in found), 2),
            str(sum(sum(one.failures.values()) for one in found)),
        ]


MEMORY = ("contender", "moment", "streams", "PSS MB", "KB a stream", "by process: PSS (RSS) MB")


def _memory(results: Results) -> Iterator[list[str]]:
    groups: dict[tuple[str, str], list[MemorySample]] = {}
    for one in results.memory:
        groups.setdefault((one.contender, one.moment), []).append(one)
    for (contender, moment), samples in groups.items():
        before = [one for one in results.memory if one.contender == contender and one.moment == "before the load"]
        total = known_spread(total_pss_mb(one.processes) for one in samples)
        each = MISSING
        if samples[0].streams and before and total:
            rest = known_spread(total_pss_mb(one.processes) for one in before)
            each = f"{(total.median - rest.median) * 1000 / samples[0].streams:.0f}" if rest else MISSING
        last = samples[-1].processes
        by_process = ", ".join(f"{name} {one.pss_mb:.0f} ({one.rss_mb:.0f})" for name, one in last.items())
        yield [contender, moment, f"{samples[0].streams:,}", number(total, 0), each, by_process]


def _places(results: Results, stage: Stage) -> list[tuple[str, int]]:
    """Paths in order of appearance, and for each its concurrencies ascending."""
    paths = dict.fromkeys(one.path for one in results.of(stage))
    levels = results.levels(stage)
    return [(path, level) for path in paths for level in levels if results.rounds(stage, path, level)]


def _range(value: Spread | None, digits: int) -> str:
    return MISSING if value is None else f"{value.low:,.{digits}f}–{value.high:,.{digits}f}"


def terminal(results: Results, goals: Sequence[Goal]) -> str:
    """Everything for the terminal; the goals come last, where they are seen."""
    parts = [f"{title}\n\n{text_table(headers, rows)}" for title, headers, rows in tables(results, goals)]
    return "\n\n".join([*parts[1:], *_troubles(results), parts[0]])


def _troubles(results: Results) -> list[str]:
    failed = failures([cell.result for cell in results.cells])
    lines = [*(f"- failed: {count:,} × {message}" for message, count in failed.items()), *_bullets(results.notes)]
    return ["\n".join(lines)] if lines else []


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def markdown(results: Results, goals: Sequence[Goal], made: Conditions, plot: str = "") -> str:
    """The section of RESULTS.md.

    Args:
        plot: path of the plot as seen from RESULTS.md.
    """
    versions = ", ".join(f"{name} {version}" for name, version in {**made.versions, **results.versions}.items())
    parts = [
        "## The serving layer, side by side",
        f"`{made.command}`",
        f"{made.date}, {made.cores} cores ({made.cpu_model}), load average before {made.load_before}. {versions}.",
        NOTES,
        f"![Tokens a second and CPU time by contender]({plot})" if plot else "",
    ]
    for title, headers, rows in tables(results, goals):
        parts += [f"### {title}", markdown_table(headers, rows)]
    return "\n\n".join(part for part in [*parts, *_troubles(results)] if part)


def json_document(results: Results, goals: Sequence[Goal], shape: Shape, made: Conditions) -> bytes:
    """Every single measurement and how the goals stand; NaN becomes null."""
    cells = [{"stage": cell.stage, "round": cell.round, **_measured(cell.result)} for cell in results.cells]
    document: dict[str, Any] = {
        "conditions": {**asdict(made), "versions": {**made.versions, **results.versions}},
        "shape": asdict(shape),
        "goals": [asdict(goal) for goal in goals],
        "cells": cells,
        "long_prompts": [asdict(one) for one in results.long_prompts],
        "memory": [{**asdict(one), "processes": _processes(one.processes)} for one in results.memory],
        "notes": results.notes,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _measured(one: Measurement) -> dict[str, Any]:
    derived = {"server_cpu_per_1k": one.server_cpu_per_1k, "tokens_per_event": one.tokens_per_event}
    return {**asdict(one), **derived, "events_per_s": one.events_per_s, "others_load": one.others_load}


def _processes(processes: dict[str, Memory]) -> dict[str, Any]:
    return {name: asdict(one) for name, one in processes.items()}
