from __future__ import annotations

from benchmarks.bls_costs import CASES, Costs, section
from benchmarks.machine import conditions


def test_what_is_added_is_told_beside_the_case_without_a_call() -> None:
    plain = Costs([1.0] * 11, [2.0] * 11, [100.0], [1.5])
    slower = Costs([1.25] * 6 + [1.5] * 5, [2.5] * 11, [80.0], [2.5])
    text = section(conditions("the command"), dict(zip(CASES, (plain, slower, slower), strict=True)), 11, 1, 16)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[2] == "| no BLS call | 1.00 / 1.00 | 0.00 / 0.00 | 2.00 / 2.00 | 0.00 / 0.00 | 100 | 1.50 |"
    assert lines[3] == "| guard before | 1.25 / 1.25 | 0.25 / 0.25 | 2.50 / 2.50 | 0.50 / 0.50 | 80 | 2.50 |"
    assert "`the command`" in text
    assert "answers `{}`" in text
