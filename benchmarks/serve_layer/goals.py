"""Goals of the serving layer, held against measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.clients.stats import Measurement
from benchmarks.contenders.servers import BARE, ENSEMBLE, GRPC, HTTP, OURS, V1
from benchmarks.serve_layer.cells import Results, Shape, Value
from benchmarks.support.spread import Spread

GOAL_LEVEL = 64
"""Concurrency at which the throughput goals are judged."""
SCALE = (64, 512)
NO_LOSS = 0.95
"""A median over the first level's that counts as no loss: repeats of one cell differ by more than the rest."""
ADDED_MS = 2.0
"""Milliseconds allowed on top of a step, and on top of the bare model's time to first token."""

_OURS = {path: OURS.label(path) for path in (V1, HTTP, GRPC)}
_BARE = {V1: BARE.label(HTTP), HTTP: BARE.label(HTTP), GRPC: BARE.label(GRPC)}
_ENSEMBLE = {HTTP: ENSEMBLE.label(HTTP), GRPC: ENSEMBLE.label(GRPC)}


@dataclass(frozen=True)
class Goal:
    """One goal and how it stands."""

    name: str
    target: str
    measured: str
    met: bool | None
    """None if it was not measured."""


def rate(one: Measurement) -> float | None:
    """Tokens/s."""
    return one.tokens_per_s


def cpu(one: Measurement) -> float | None:
    """Server CPU seconds per 1,000 tokens."""
    return one.server_cpu_per_1k


def reference(path: str) -> str | None:
    """The bare model's path that the path named `path` in tables is compared with; None for the bare model's own."""
    if path in _BARE.values():
        return None
    return _BARE[GRPC] if path.endswith(GRPC) else _BARE[HTTP]


def judge(results: Results, shape: Shape) -> list[Goal]:
    """Every goal, those that were not measured too."""
    return [*_throughput(results), *_crowd(results, shape), *_latency(results, shape), *_failures(results)]


def _throughput(results: Results) -> Iterator[Goal]:
    """Rates and CPU time against the bare model, against the ensemble, and of many streams against few."""

    def ratio(ours: str, theirs: str, level: int, value: Value) -> Spread | None:
        return results.compare("throughput", (ours, level), (theirs, level), value)

    level = GOAL_LEVEL
    name, pair = f"over bare generate_stream, {level} streams", (_OURS[V1], _BARE[V1], level)
    yield _judged(f"/v1 tokens/s {name}", "≥", 1.5, ratio(*pair, rate))
    yield _judged(f"/v1 server CPU per token {name}", "≤", 0.6, ratio(*pair, cpu))
    for path in (HTTP, GRPC):
        found = ratio(_OURS[path], _BARE[path], level, rate)
        yield _judged(f"{path} tokens/s over bare {path}, {level} streams", "≥", 0.7, found)
    for path in (HTTP, GRPC):
        name, pair = f"over ensemble, {level} streams", (_OURS[path], _ENSEMBLE[path], level)
        yield _judged(f"{path} tokens/s {name}", ">", 1, ratio(*pair, rate))
        yield _judged(f"{path} server CPU per token {name}", "<", 1, ratio(*pair, cpu))
    few, many = SCALE
    for path, label in _OURS.items():
        found = results.compare("throughput", (label, many), (label, few), rate)
        yield _judged(f"{path} tokens/s at {many} streams over {few}", "≥", NO_LOSS, found)


def _crowd(results: Results, shape: Shape) -> Iterator[Goal]:
    for path, label in _OURS.items():
        rounds = results.rounds("crowd", label, shape.crowd).values()
        asked, failed = sum(one.requests for one in rounds), sum(one.failed for one in rounds)
        measured = f"{asked - failed:,} of {asked:,}" if asked else "not measured"
        name = f"{path} streams that complete, {shape.crowd:,} at the same time"
        yield Goal(name, "all", measured, not failed if asked else None)


def _latency(results: Results, shape: Shape) -> Iterator[Goal]:
    step, level = shape.step_delay_ms, shape.paced_level
    for path, label in _OURS.items():
        gap = results.median("paced", label, level, lambda one: one.gap_ms_p99)
        name = f"{path} inter-token p99, {level} streams, steps of {step:g} ms"
        yield _judged(name, "≤", step + ADDED_MS, gap, " ms")
    for path, label in _OURS.items():
        added = results.compare(
            "first token", (label, 1), (_BARE[path], 1), lambda one: one.first_token_ms_p50, lambda a, b: a - b
        )
        name = f"{path} time to first token added to bare, 1 stream, steps of {step:g} ms"
        yield _judged(name, "≤", ADDED_MS, added, " ms")


def _failures(results: Results) -> Iterator[Goal]:
    # Over all stages: a figure of streams of which some failed would be worth little.
    every = [cell.result for cell in results.cells if cell.result.path in _OURS.values()]
    asked, failed = sum(one.requests for one in every), sum(one.failed for one in every)
    measured = f"{failed:,} of {asked:,}" if asked else "not measured"
    yield Goal("requests that failed or were not complete, all stages", "0", measured, not failed if asked else None)


def _judged(name: str, sign: str, limit: float, measured: Spread | None, unit: str = "") -> Goal:
    """A goal that is met if the median keeps the limit."""
    target = f"{sign} {limit:g}{unit}"
    if measured is None:
        return Goal(name, target, "not measured", None)
    shown = f" ({measured.low:.2f}–{measured.high:.2f})" if measured.high > measured.low else ""
    value = measured.median
    met = {"≥": value >= limit, "≤": value <= limit, ">": value > limit, "<": value < limit}[sign]
    return Goal(name, target, f"{value:.2f}{unit}{shown}", met)
