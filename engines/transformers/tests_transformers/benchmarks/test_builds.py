"""The benchmark of builds: its manifests, and the tables of what was measured and what was refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support import lengths
from benchmarks.support.engine import Level, Variant
from benchmarks.support.random_checkpoint import write
from benchmarks_transformers.build_report import Result, json_table, load_table, speed_table
from benchmarks_transformers.builds import FP8, Build, Plan, measure, outcome
from openai_bls.core.manifest import load_manifest
from openai_bls_transformers.record import EmbeddedRecord


def result(name: str, rates: list[float], error: str = "") -> Result:
    levels = [Level(at, 1, 0, 9, rate, 1, 1, 1e3 / rate, 1, 9) for at, rate in zip((1, 64), rates, strict=False)]
    return Result(Variant(name, {}, 9.5, levels, error))


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_a_manifest(tmp_path: Path) -> None:
    checkpoint = tmp_path / "m"
    folder = FP8[1].write(tmp_path, checkpoint, 7, 99)
    manifest = load_manifest(folder)
    assert (EmbeddedRecord.of(manifest).quant, manifest.max_batch_size, manifest.max_model_len) == ("fp8", 7, 99)
    assert folder / manifest.checkpoint == checkpoint


def test_ratios_are_to_the_first_build() -> None:
    slow, fast = cells(speed_table([result("own type", [250, 10000]), result("FP8", [375, 13000])], (1, 64)))
    assert slow == ["own type", "9.5", "4.00", "1.00", "250", "1.00", "0.10", "1.00", "10,000", "1.00", ""]
    assert fast == ["FP8", "9.5", "2.67", "1.00", "375", "1.50", "0.08", "1.00", "13,000", "1.30", ""]


def test_what_came_before_a_problem_is_kept() -> None:
    slow = result("own type", [250])
    assert outcome(Build("own type"), slow, "no end after 9 s") is slow
    assert slow.speed.error == "no end after 9 s"
    nothing = outcome(Build("own type"), None, "it died")
    assert (nothing.speed.error, nothing.golden_error) == ("it died", "it died")


def test_a_build_that_is_driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "PROMPTS", lengths.Lengths(8, 4, 16, 0.5))
    monkeypatch.setattr(lengths, "OUTPUTS", lengths.Lengths(8, 4, 16, 0.5))
    write("tiny", tmp_path / "tiny", "cpu")
    plan = Plan([1, 2], 4, [32, 9000], 60, json=True, rates=[20], rate_s=0.2).fitting(tmp_path / "tiny")
    *_, result = measure(FP8[0], tmp_path, tmp_path / "tiny", plan, False)
    assert result.speed.error == ""
    assert [(one.concurrency, one.failed) for one in result.speed.levels] == [(1, 0), (2, 0)]
    [row] = cells(load_table([result], (32, 9000)))
    assert row[:2] == ["FP8 weights", "n/a"]
    assert row[2] == ", then ".join(f"{value:.1f}" for value in result.first_requests_ms)
    assert min(float(cell) for cell in row[3:5]) > 0
    assert row[5:] == ["n/a", "n/a", "passed by continuous_batching with attention sdpa"]
    [row] = cells(json_table([result]))
    assert float(row[3]) > 0
    assert [one.rate for one in result.mixed] == [20]


def test_a_build_that_is_refused(tmp_path: Path) -> None:
    write("tiny", tmp_path / "tiny", "cpu")
    [result] = measure(FP8[1], tmp_path, tmp_path / "tiny", Plan([1], 4, [], 60), False)
    assert "kv_cache_dtype fp8 is for the attention paged on a GPU" in result.speed.error
    assert cells(load_table([result], ())) == [["FP8 weights and KV cache", "n/a", "n/a", "refused"]]
