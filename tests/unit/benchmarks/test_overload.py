from __future__ import annotations

from benchmarks.overload import Answer, Load, fairness_table, goodput_table


def load(rate: float, good: int, late: int = 0, refused: int = 0) -> Load:
    return Load(rate, 2.0, [Answer(0, 200)] * good + [Answer(0, 504)] * late + [Answer(0, 429)] * refused)


def test_only_answers_in_time_are_goodput() -> None:
    assert load(1, good=6, late=3, refused=9).goodput == 3
    table = goodput_table(4, [load(4, 8), load(40, 7, late=2, refused=71)], 10)
    assert table.splitlines()[2:4] == ["| 4 | 1 | 4.0 | 8 × 200 |", "| 40 | 10 | 3.5 | 7 × 200, 71 × 429, 2 × 504 |"]
    assert table.endswith("Capacity 4.0 answers/s; goodput at 10 times that is 0.88 of the peak.")


def test_times_are_told_beside_those_alone() -> None:
    rows = fairness_table({"alone": [10.0, 20.0, 30.0], "beside": [30.0, 30.0, 31.0]}).splitlines()
    assert rows[2].startswith("| alone | 20 |")
    assert rows[3].endswith("| 1.50 |")
