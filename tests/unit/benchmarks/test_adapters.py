"""The benchmark of adapters, with a tiny model."""

from __future__ import annotations

import pytest

from benchmarks import adapters


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert adapters.main(["--shape", "tiny", "--concurrency", "1,2", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:6]] == list(adapters._CASES)
    assert all(float(cell) > 0 for line in lines[2:6] for cell in line.replace(",", "").split("|")[2:4])
