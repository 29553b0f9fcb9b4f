from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.serve_layer import older


def test_ratios_are_of_the_same_round() -> None:
    now, before = [(100.0, 10.0), (300.0, 30.0), (200.0, 90.0)], [(50.0, 20.0), (300.0, 40.0), (400.0, 60.0)]
    (row,) = older.table({("chat", 128, 64): {"this tree": now, "older": before}}).splitlines()[2:]
    assert row == "| chat, 128 tokens, 64 | 300 | 200 | 1.00 | 40 | 30 | 0.75 |"


def test_a_folder_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has its cores again afterwards, and ends at a SIGTERM as before: here it runs further tests."""
    monkeypatch.setattr(older, "prepare", lambda *_: None)
    monkeypatch.setattr(older, "exit_on_sigterm", lambda: None)
    cores = os.sched_getaffinity(0)
    assert older.main([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
    assert os.sched_getaffinity(0) == cores
