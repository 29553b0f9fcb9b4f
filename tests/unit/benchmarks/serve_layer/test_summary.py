from __future__ import annotations

import json

from benchmarks.clients.stats import nothing_measured
from benchmarks.serve_layer.cells import Cell, Results
from benchmarks.serve_layer.summary import json_document, markdown, tables, terminal
from benchmarks.support.machine import Conditions
from tests.unit.benchmarks.serve_layer.bench_results import SHAPE, good_results, made_up

_MADE = Conditions("python -m benchmarks.serve_layer", "2026-01-02T03:04Z", 2, "A CPU", 0.5, {"Python": "3.11"})


def test_ratios_are_taken_round_by_round() -> None:
    """Twice as fast in each round, although the machine was half as fast in the second."""
    throughput = next(rows for title, _, rows in tables(good_results()) if title == "As fast as possible")
    (row,) = (row for row in throughput if row[:2] == ["ours /v1 chat", "64"])
    assert row[4:7] == ["15,000", "10,000–20,000", "2.00"]


def test_nothing_measured_is_no_table() -> None:
    assert terminal(Results()) == ""


def test_failures_and_notes_are_reported() -> None:
    results = good_results()
    results.cells.append(Cell("throughput", 1, made_up("ensemble grpc", 64, 900, failed=3)))
    results.notes.append("round 1: ensemble: processes left behind")
    text = markdown(results, _MADE)
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
    document = json.loads(json_document(results, SHAPE, _MADE))
    assert len(document["cells"]) == len(results.cells)
    assert document["cells"][-1]["tokens_per_s"] is None
    assert document["cells"][0]["events_per_s"] == 5_000


def test_what_https_costs() -> None:
    results = good_results()
    assert "HTTPS on /v1" not in terminal(results)
    for number, speed in ((1, 1.0), (2, 0.5)):
        results.cells.append(Cell("throughput", number, made_up("ours_tls /v1 chat", 64, 15_000 * speed)))
    rows = next(rows for title, _, rows in tables(results) if title == "HTTPS on /v1")
    assert [row[:5] for row in rows] == [["64", "15,000", "11,250", "0.75", "0.75–0.75"]]
