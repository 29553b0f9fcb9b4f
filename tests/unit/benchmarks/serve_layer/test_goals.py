from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.clients.stats import Measurement, nothing_measured
from benchmarks.serve_layer.cells import Cell, Results
from benchmarks.serve_layer.goals import Goal, judge
from benchmarks.serve_layer.summary import json_document, markdown, tables, terminal
from benchmarks.support.machine import Conditions
from tests.unit.benchmarks.serve_layer.bench_results import SHAPE, good_results, made_up

_MADE = Conditions("python -m benchmarks.serve_layer", "2026-01-02T03:04Z", 2, "A CPU", 0.5, {"Python": "3.11"})


def _goals(results: Results) -> dict[str, Goal]:
    return {goal.name: goal for goal in judge(results, SHAPE)}


def _replaced(results: Results, path: str, changes: dict[str, Any]) -> Results:
    """`results` with every measurement of `path` made anew."""

    def anew(one: Measurement) -> Measurement:
        if one.path != path:
            return one
        kept = {"rate": one.tokens_per_s, "first_ms": one.first_token_ms_p50, "gap_ms": one.gap_ms_p99}
        return made_up(path, one.concurrency, **{**kept, **changes})

    results.cells = [Cell(cell.stage, cell.round, anew(cell.result)) for cell in results.cells]
    return results


def test_good_results_meet_every_goal() -> None:
    goals = judge(good_results(), SHAPE)
    assert len(goals) == 21
    assert [goal.name for goal in goals if not goal.met] == []


def test_ratios_are_taken_round_by_round() -> None:
    # Twice as fast in each round, although the machine was half as fast in the second.
    goal = _goals(good_results())["/v1 tokens/s over bare generate_stream, 64 streams"]
    assert goal == Goal(goal.name, "≥ 1.5", "2.00", True)


@pytest.mark.parametrize(
    ("path", "changes", "missed"),
    [
        ("ours /v1 chat", {"rate": 9_000.0}, "/v1 tokens/s over bare generate_stream, 64 streams"),
        ("ours /v1 chat", {"cpu_s": 1.3}, "/v1 server CPU per token over bare generate_stream, 64 streams"),
        ("ours generate_stream", {"rate": 3_000.0}, "generate_stream tokens/s over bare generate_stream, 64 streams"),
        ("ours grpc", {"rate": 1_000.0}, "grpc tokens/s over ensemble, 64 streams"),
        ("ours grpc", {"cpu_s": 3.1}, "grpc server CPU per token over ensemble, 64 streams"),
        ("ours /v1 chat", {"gap_ms": 7.1}, "/v1 chat inter-token p99, 64 streams, steps of 5 ms"),
        ("ours grpc", {"first_ms": 3.6}, "grpc time to first token added to bare, 1 stream, steps of 5 ms"),
        ("ours /v1 chat", {"failed": 1}, "/v1 chat streams that complete, 2,000 at the same time"),
        ("ours grpc", {"failed": 1}, "requests that failed or were not complete, all stages"),
    ],
)
def test_missed_goals(path: str, changes: dict[str, Any], missed: str) -> None:
    assert _goals(_replaced(good_results(), path, changes))[missed].met is False


def test_a_rate_that_falls_with_the_streams_is_missed() -> None:
    results = good_results()
    results.cells = [
        replace(cell, result=made_up(cell.result.path, 512, 8_000.0)) if cell.result.concurrency == 512 else cell
        for cell in results.cells
    ]
    assert _goals(results)["/v1 chat tokens/s at 512 streams over 64"].met is False


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    goals = judge(Results(), SHAPE)
    assert {(goal.met, goal.measured) for goal in goals} == {(None, "not measured")}
    assert terminal(Results(), goals).count("not measured") == 21


def test_failures_and_notes_are_reported() -> None:
    results = good_results()
    results.cells.append(Cell("throughput", 1, made_up("ensemble grpc", 64, 900, failed=3)))
    results.notes.append("round 1: ensemble: processes left behind")
    text = markdown(results, judge(results, SHAPE), _MADE)
    for line in (
        "| ours /v1 chat | 64 | 20 | 0 | 15,000 | 10,000–20,000 | 2.00 | 100.0 |",
        "- failed: 3 × ensemble grpc: incomplete: it broke",
        "- round 1: ensemble: processes left behind",
    ):
        assert line in text
    # All levels are in the JSON and on the terminal.
    assert "| ours /v1 chat | 128 |" not in text


def test_json_has_every_measurement_and_no_nan() -> None:
    results = good_results()
    results.cells.append(Cell("throughput", 3, nothing_measured("bare grpc", 64, "no server")))
    document = json.loads(json_document(results, judge(results, SHAPE), SHAPE, _MADE))
    assert len(document["cells"]) == len(results.cells)
    assert document["cells"][-1]["tokens_per_s"] is None
    assert document["cells"][0]["events_per_s"] == 5_000


def test_what_https_costs() -> None:
    results = good_results()
    assert "HTTPS on /v1" not in terminal(results, [])
    for number, speed in ((1, 1.0), (2, 0.5)):
        results.cells.append(Cell("throughput", number, made_up("ours_tls /v1 chat", 64, 15_000 * speed)))
    rows = next(rows for title, _, rows in tables(results, []) if title == "HTTPS on /v1")
    assert [row[:5] for row in rows] == [["64", "15,000", "11,250", "0.75", "0.75–0.75"]]
