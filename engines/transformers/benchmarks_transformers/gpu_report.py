"""Results of `benchmarks_transformers.gpu`, held against the goals, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.clients.stats import Measurement
from benchmarks.support.copying import Load
from benchmarks.support.engine import Floor, Level
from benchmarks.support.report import MISSING, goals_table, markdown_table
from benchmarks_transformers import build_report, mixed_load, speculation
from benchmarks_transformers.build_report import Result
from benchmarks_transformers.builds import FP8

MAIN = "auto"
"""Build with the engine's own choices."""
_COPIES, _NOTHING = "copies its prompt, greedy", "nothing to copy, greedy"


@dataclass
class Results:
    """Everything measured so far."""

    made: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    """By stage: seconds it took, and how it ended."""
    floor: Floor | None = None
    builds: list[Result] = field(default_factory=list)
    """The engine alone."""
    drafts: list[Load] = field(default_factory=list)
    served: list[Measurement] = field(default_factory=list)
    """/v1 with the settings of `MAIN`, by concurrency."""

    def build(self, name: str) -> Result | None:
        """A build by its name."""
        return next((one for one in self.builds if one.speed.name == name), None)

    def level(self, concurrency: int, build: str = MAIN) -> Level | None:
        """A level of a build."""
        found = self.build(build)
        return next((one for one in found.speed.levels if one.concurrency == concurrency), None) if found else None

    def times(self, build: str) -> float | None:
        """Milliseconds per token of one stream by `MAIN` over those by a build."""
        ours, plain = self.level(1, build), self.level(1)
        return plain.gap_p50 / ours.gap_p50 if ours and plain else None

    def draft_times(self, load: str) -> float | None:
        """Tokens/s of a load with drafts over those without."""
        return next((one.times for one in self.drafts if one.name == load), None)


def goals(results: Results) -> Iterator[tuple[str, str, float, float | None]]:
    """Each goal: its name, its sign, its limit, and what was measured."""
    main, one, many = results.build(MAIN), results.level(1), results.level(256)
    floor = results.floor.token_ms / one.gap_p50 if results.floor and results.floor.bytes_per_s and one else None
    yield "one stream, share of what the bandwidth of a copy allows", "≥", 0.85, floor
    yield "256 streams, tokens/s", "≥", 24_000, many.tokens_per_s if many else None
    yield "256 streams, ITL p99 ms", "≤", 25, many.gap_p99 if many else None
    for length, limit in ((8192, 200), (24_000, 740)):
        found = main.prompts_ms.get(length) if main else None
        yield f"a prompt of {length:,} tokens alone, ms to its token", "≤", limit, found[0] if found else None
    rate = next((found for found in main.mixed if found.rate == 30), None) if main else None
    yield "mixed load, 30 requests/s, TTFT p99 ms", "≤", 120, rate.first_token_p99 if rate else None
    yield "mixed load, 30 requests/s, ITL p99 ms", "≤", 25, rate.gap_p99 if rate else None
    beside = main.beside if main else None
    slower = beside["beside p99"] / beside["quiet p99"] if beside else None
    yield "ITL p99 of 64 streams beside a long prompt, times that without it", "≤", 2, slower
    yield (
        "ready after imports, s",
        "≤",
        20,
        main.speed.load_s if main and main.speed.levels else None,
    )
    yield "64 streams of JSON, times the tokens/s of plain text", "≥", 0.85, main.json_share if main else None
    yield "weights and KV cache in FP8, one stream, times", "≥", 1.5, results.times(FP8[1].name)
    yield "drafts, a text that is copied, times", "≥", 1.8, results.draft_times(_COPIES)
    yield "drafts, nothing to copy, times", "≥", 0.97, results.draft_times(_NOTHING)


def summary(results: Results) -> str:
    """The results as Markdown."""
    parts = ["# The embedded engine on a GPU"]
    if results.made:
        versions = ", ".join(f"{name} {version}" for name, version in results.made["versions"].items())
        parts.append(f"{results.made['date']}, {results.made['cores']} cores ({results.made['cpu_model']}). {versions}")
    if limit := results.floor:
        parts.append(
            f"Floor at one sequence: {limit.step_bytes / 1e9:.2f} GB of weights per step (of "
            f"{limit.weight_bytes / 1e9:.2f}) at {limit.bytes_per_s / 1e12:.2f} TB/s of a copy: "
            f"{limit.token_ms:.2f} ms per token."
        )
    for title, table in tables(results):
        parts += [f"## {title}", table]
    return "\n\n".join(parts) + "\n"


def tables(results: Results) -> Iterator[tuple[str, str]]:
    """Title and Markdown of every table that has something."""
    if found := results.builds:
        yield "Goals", goals_table(goals(results))
        at = sorted({level.concurrency for one in found for level in one.speed.levels})
        yield "The engine alone", build_report.speed_table(found, at)
        lengths = sorted({length for one in found for length in one.prompts_ms})
        yield "Memory, long prompts, self-test", build_report.load_table(found, lengths)
        if any(one.json for one in found):
            yield "JSON", build_report.json_table(found)
        if any(one.mixed for one in found):
            yield "Mixed load", mixed_load.table({one.speed.name: one.mixed for one in found})
        if beside := [one for one in found if one.beside]:
            rows = [[one.speed.name, *(f"{value:.1f}" for value in one.beside.values())] for one in beside]
            yield "64 streams beside a long prompt, ms", markdown_table(("build", *beside[0].beside), rows)
        yield "Golden answers", build_report.golden_table(found)
    if results.drafts:
        yield "Drafts by n-grams and predictions", "\n".join(speculation.table(results.drafts))
    if results.served:
        rows = [_served_row(one, results.level(one.concurrency)) for one in results.served]
        yield "/v1 against the engine alone", markdown_table(_SERVED, rows)
    stages = [[name, said.replace("|", "/")] for name, said in results.stages.items()]
    yield "Stages", markdown_table(("stage", "took"), stages)


_SERVED = (
    *("conc.", "requests", "failed", "TTFT p50", "ITL p50", "ITL p99", "tokens/s", "engine alone", "ratio"),
    "CPU µs per token by process",
)


def _served_row(one: Measurement, alone: Level | None) -> list[str]:
    cpu = {name: seconds / max(one.tokens, 1) * 1e6 for name, seconds in one.server_cpu_by_process.items()}
    ratio = (f"{alone.tokens_per_s:,.0f}", f"{one.tokens_per_s / alone.tokens_per_s:.1%}") if alone else (MISSING,) * 2
    return [
        *(f"{value:,}" for value in (one.concurrency, one.requests, one.failed)),
        *(f"{value:.2f}" for value in (one.first_token_ms_p50, one.gap_ms_p50, one.gap_ms_p99)),
        f"{one.tokens_per_s:,.0f}",
        *ratio,
        ", ".join(f"{name} {micros:,.1f}" for name, micros in cpu.items()),
    ]
