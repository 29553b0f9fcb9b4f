from __future__ import annotations

from benchmarks.serve_layer.engine_process import steps_of, table


def test_differences_are_of_the_same_round() -> None:
    throughput = {"in process": {1: [100.0, 200.0, 400.0]}, "own process": {1: [90.0, 200.0, 440.0]}}
    cost = {"in process": {1: [10.0, 100.0, 50.0]}, "own process": {1: [20.0, 90.0, 65.0]}}
    (row,) = table(throughput, cost, cost).splitlines()[2:]
    assert row == "| 1 | 200 | 200 | 1.00 | 50 | 65 | +10 | 50 | 65 | +10 |"


def test_steps_are_those_of_all_engines() -> None:
    page = '# HELP openai_bls_engine_steps_total Steps\nopenai_bls_engine_steps_total{model="a"} 41.0\nother 1\n'
    assert steps_of(page) == 41
