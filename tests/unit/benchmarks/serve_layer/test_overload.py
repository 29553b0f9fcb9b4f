from __future__ import annotations

from benchmarks.serve_layer.overload import Answer, Load, Round, fairness_table, goodput_table


def load(rate: float, good: int, late: int = 0, refused: int = 0, *, slow: int = 0, cpu_s: float = 0.0) -> Load:
    answers = [Answer(0, 200, ended_at=1)] * (good - slow) + [Answer(0, 200, ended_at=9)] * slow
    answers += [Answer(0, 504)] * late + [Answer(0, 429)] * refused
    return Load(rate, 2.0, answers, 0.004, {"openai_bls": cpu_s, "client": 1})


def test_only_answers_in_time_are_goodput() -> None:
    assert load(1, good=6, late=3, refused=9).goodput == 3
    # The server does not see what waits in the client, or on the way.
    assert load(1, good=6, slow=2).clients_goodput == 2


def test_what_is_concluded_is_the_median_of_rounds() -> None:
    rounds = [Round(4, load(4, 8, cpu_s=0.1), load(40, good, late=2, refused=71, cpu_s=0.242)) for good in (7, 2, 8)]
    table = goodput_table(rounds, 10).splitlines()
    assert table[2:4] == [
        "| 1 | 4 | 4.0 | 4.0 | 8 × 200 | 4 | 0.55 |",
        "| 1 | 40 | 3.5 | 3.5 | 7 × 200, 71 × 429, 2 × 504 | 4 | 0.62 |",
    ]
    assert table[-1] == (
        "Capacity 4.0 answers/s. Goodput at 10 times that is 0.88 (0.25 to 1.00 in 3 rounds) of the peak. "
        "A 429 costs `openai_bls` 2,000 µs of CPU time."
    )


def test_times_are_told_beside_those_alone() -> None:
    rounds = [{"alone": [10.0, 20.0, 30.0], "beside": [beside, beside]} for beside in (30.0, 20.0, 90.0)]
    rows = fairness_table(rounds).splitlines()
    assert rows[2] == "| 1 | alone | 20 | 30 | 1.00 |"
    assert rows[3] == "| 1 | beside | 30 | 30 | 1.50 |"
    assert rows[-1].endswith(": 1.50 (1.00 to 4.50 in 3 rounds) times that alone.")
