from __future__ import annotations

from benchmarks.prompt_transports import table


def test_differences_are_of_the_same_prompt() -> None:
    times = {"socket": [100.0, 1000.0, 200.0], "BLS": [350.0, 1250.0, 450.0]}
    rates = {"socket": [10.0, 30.0, 20.0], "BLS": [5.0, 5.0, 5.0]}
    header, _, socket, bls = (line.split(" | ") for line in table(times, rates).splitlines())
    assert header[3] == "µs more than the socket"
    assert socket[1:] == ["200", "840", "+0", "1.00", "20 |"]
    assert bls[1:] == ["450", "1,090", "+250", "2.25", "5 |"]
