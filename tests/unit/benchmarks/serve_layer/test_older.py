from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serve_layer.older import main, table


def test_ratios_are_of_the_same_round() -> None:
    now, older = [(100.0, 10.0), (300.0, 30.0), (200.0, 90.0)], [(50.0, 20.0), (300.0, 40.0), (400.0, 60.0)]
    (row,) = table({("chat", 128, 64): {"this tree": now, "older": older}}).splitlines()[2:]
    assert row == "| chat, 128 tokens, 64 | 300 | 200 | 1.00 | 40 | 30 | 0.75 |"


def test_a_folder_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
