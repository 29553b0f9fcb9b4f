"""The goals of the serving layer, held against what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Shape
from benchmarks.cells import Results, Stage, Value, known_spread
from benchmarks.contenders.servers import BARE, ENSEMBLE, GRPC, HTTP, OURS, V1
from benchmarks.stats import Measurement, Spread

GOAL_LEVELS = (64, 128)
"""Concurrencies at which the throughput goals are judged."""
SCALE = (64, 512)
NO_LOSS = 0.95
"""A median over the first level's that counts as no loss: repeats of one cell differ by more than the rest."""
ADDED_MS = 2.0
"""What may come on top of a step, and on top of the bare model's time to first token."""

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
    """Tokens a second."""
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
    return [
        *_against_bare(results),
        *_against_ensemble(results),
        *_scale(results),
        *_crowd(results, shape),
        *_latency(results, shape),
        _long_prompt(results, shape),
        _no_failure(results),
    ]


def _against_bare(results: Results) -> list[Goal]:
    goals = []
    for level in GOAL_LEVELS:
        faster = _ratio(results, _OURS[V1], _BARE[V1], level, rate)
        goals.append(_at_least(f"/v1 tokens/s over bare generate_stream, {level} streams", 1.5, faster))
        cheaper = _ratio(results, _OURS[V1], _BARE[V1], level, cpu)
        goals.append(_at_most(f"/v1 server CPU a token over bare generate_stream, {level} streams", 0.6, cheaper))
    for path in (HTTP, GRPC):
        for level in GOAL_LEVELS:
            share = _ratio(results, _OURS[path], _BARE[path], level, rate)
            goals.append(_at_least(f"{path} tokens/s over bare {path}, {level} streams", 0.7, share))
    return goals


def _against_ensemble(results: Results) -> list[Goal]:
    goals = []
    for path in (HTTP, GRPC):
        for level in GOAL_LEVELS:
            faster = _ratio(results, _OURS[path], _ENSEMBLE[path], level, rate)
            goals.append(_judged(f"{path} tokens/s over ensemble, {level} streams", "> 1", faster, lambda x: x > 1))
            cheaper = _ratio(results, _OURS[path], _ENSEMBLE[path], level, cpu)
            name = f"{path} server CPU a token over ensemble, {level} streams"
            goals.append(_judged(name, "< 1", cheaper, lambda x: x < 1))
    return goals


def _scale(results: Results) -> list[Goal]:
    few, many = SCALE
    return [
        _at_least(
            f"{path} tokens/s at {many} streams over {few}",
            NO_LOSS,
            results.compare("throughput", (label, many), (label, few), rate),
        )
        for path, label in _OURS.items()
    ]


def _crowd(results: Results, shape: Shape) -> list[Goal]:
    goals = []
    for path, label in _OURS.items():
        rounds = results.rounds("crowd", label, shape.crowd).values()
        asked, failed = sum(one.requests for one in rounds), sum(one.failed for one in rounds)
        measured = f"{asked - failed:,} of {asked:,}" if asked else "not measured"
        name = f"{path} streams that complete, {shape.crowd:,} at the same time"
        goals.append(Goal(name, "all", measured, not failed if asked else None))
    return goals


def _latency(results: Results, shape: Shape) -> list[Goal]:
    step, level = shape.step_delay_ms, shape.paced_level
    goals = []
    for path, label in _OURS.items():
        gap = results.median("paced", label, level, lambda one: one.gap_ms_p99)
        name = f"{path} inter-token p99, {level} streams, steps of {step:g} ms"
        goals.append(_judged(name, f"≤ {step + ADDED_MS:g} ms", gap, lambda x: x <= step + ADDED_MS, " ms"))
    for path, label in _OURS.items():
        added = results.compare(
            "first token", (label, 1), (_BARE[path], 1), lambda one: one.first_token_ms_p50, lambda a, b: a - b
        )
        name = f"{path} time to first token added to bare, 1 stream, steps of {step:g} ms"
        goals.append(_judged(name, f"≤ {ADDED_MS:g} ms", added, lambda x: x <= ADDED_MS, " ms"))
    return goals


def _long_prompt(results: Results, shape: Shape) -> Goal:
    found = [one for one in results.long_prompts if one.path == _OURS[V1]]
    slower = known_spread(one.gap_ms_p99 / one.quiet_gap_ms_p99 for one in found if one.quiet_gap_ms_p99)
    tokens = shape.long_prompt_tokens
    goal = _at_most(f"/v1 inter-token p99 beside a prompt of {tokens:,} tokens over the quiet one", 2.0, slower)
    if any(one.failures for one in found):
        return Goal(goal.name, goal.target, f"{goal.measured}, with failed requests", False)
    return goal


def _no_failure(results: Results) -> Goal:
    """Over all stages: a figure of streams of which some failed would be worth little."""
    every = [cell.result for cell in results.cells if cell.result.path in _OURS.values()]
    asked, failed = sum(one.requests for one in every), sum(one.failed for one in every)
    measured = f"{failed:,} of {asked:,}" if asked else "not measured"
    return Goal("requests that failed or were not complete, all stages", "0", measured, not failed if asked else None)


def _ratio(results: Results, ours: str, theirs: str, level: int, value: Value) -> Spread | None:
    stage: Stage = "throughput"
    return results.compare(stage, (ours, level), (theirs, level), value)


def _at_least(name: str, target: float, measured: Spread | None) -> Goal:
    return _judged(name, f"≥ {target:g}", measured, lambda x: x >= target)


def _at_most(name: str, target: float, measured: Spread | None) -> Goal:
    return _judged(name, f"≤ {target:g}", measured, lambda x: x <= target)


def _judged(name: str, target: str, measured: Spread | None, good: Callable[[float], bool], unit: str = "") -> Goal:
    """A goal that is met if the median is `good`."""
    if measured is None:
        return Goal(name, target, "not measured", None)
    spread = f" ({measured.low:.2f}–{measured.high:.2f})" if measured.high > measured.low else ""
    return Goal(name, target, f"{measured.median:.2f}{unit}{spread}", good(measured.median))
