"""The benchmark of mixtures of experts: a tiny model driven on the CPU, and the tables."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.support.engine import Level, Variant
from benchmarks_transformers import experts
from benchmarks_transformers.build_report import Result
from openai_bls_transformers.model import model_loader


def test_a_model_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loader, "read_model", model_loader.read_model)  # which comes back with the test's end
    *_, results = experts.engine("tiny-qwen3-moe", True, [1, 2], 60)
    assert [one.speed.name for one in results] == ["fused, random ids", "fused, words"]
    assert [[(level.concurrency, level.failed) for level in one.speed.levels] for one in results] == [
        [(1, 0), (2, 0)],
        [(1, 0), (2, 0)],
    ]
    assert sorted(results[0].prompts_ms) == [256, 1024]


def test_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def attempt(seconds: float, function: Any, like: str, fused: bool, *more: Any) -> tuple[list[Result], str]:
        level = Level(16, 48, 0, 9, 3000.0 if fused else 1500.0, 1, 1, 5, 6, 9)
        kinds = ("random ids", "words")
        variants = [Variant(f"{'fused' if fused else 'plain'}, {kind}", {}, 9.5, [level]) for kind in kinds]
        return [Result(one, prompts_ms={256: (8.5, 3.0), 1024: (20.5, 3.0)}) for one in variants], ""

    monkeypatch.setattr(experts, "in_child", lambda *arguments: [["1 of 128", "8", "30.0", "90.0", "3.00", "2.50"]])
    monkeypatch.setattr(experts, "attempt", attempt)
    assert experts.main(["--concurrency", "16"]) == 0
    said = capsys.readouterr().out
    assert "| 1 of 128 | 8 | 30.0 | 90.0 | 3.00 | 2.50 |" in said
    assert "| fused, words | 9.5 | 5.00 | 6.00 | 3,000 | 2.00 |  |" in said
    assert "| fused, random ids | 8.5 | 20.5 |" in said
