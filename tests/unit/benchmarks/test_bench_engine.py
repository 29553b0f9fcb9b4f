"""The direct benchmark over the null engine, and what the GPU session makes of results."""

from __future__ import annotations

import argparse
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import gpu
from benchmarks.engine import Floor, Load, Variant, Work, floor, main, parse_variant, report, run_variant
from openai_bls.engines.registry import create_engine

NO_FLOOR = Floor(0, 0, 0.0)


def test_every_request_is_counted(tmp_path: Path) -> None:
    variant = Variant("null", {"engine": "null", "null_step_delay_ms": "1"})
    run_variant(variant, tmp_path, (1, 4), Work(5, 10, requests_per_slot=2, min_requests=3), NO_FLOOR)
    assert not variant.error
    one, four = variant.levels
    assert (one.requests, one.tokens, one.failed) == (3, 30, 0)
    assert (four.requests, four.tokens, four.failed) == (8, 80, 0)
    assert four.tokens_per_s > 2 * one.tokens_per_s
    assert 0.5 < one.gap_p50 < 5
    assert one.steps >= 30
    assert "null" in report([variant], NO_FLOOR)


def test_a_level_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    load = Load()
    engine = create_engine(tmp_path, load.on_step, {"engine": "null", "null_step_delay_ms": "20"})
    try:
        level = load.run(engine, Work(5, 1000, limit_s=0.5), 2)
        assert level.cut_short
        assert level.failed == 0
        assert 20 <= level.tokens <= 60
        assert load.run(engine, Work(5, 2), 2).requests == 6
    finally:
        engine.close()


def test_ends_before_their_length_have_failed(tmp_path: Path) -> None:
    load = Load()
    engine = create_engine(tmp_path, load.on_step, {"engine": "null", "null_crash_at_step": "5"})
    try:
        assert load.run(engine, Work(5, 10), 1).failed == 4
    finally:
        engine.close()


def test_an_engine_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    variant = Variant("none", {})
    run_variant(variant, tmp_path, (1,), Work(), NO_FLOOR)
    assert "no engine" in variant.error


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoint").mkdir()
    file = tmp_path / "found.json"
    given = ["--engine-dir", str(tmp_path), "--concurrency", "1,2", "--output-tokens", "3", "--json", str(file)]
    assert main([*given, "--variant", "a:engine=null", "--variant", "b:engine=null"]) == 0
    assert capsys.readouterr().out.count("\n") == 5
    found = msgspec.json.decode(file.read_bytes())
    assert [variant["name"] for variant in found["variants"]] == ["a", "b"]
    assert main([*given, "--variant", "a:engine=null", "--budget-s", "-1"]) == 1


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("x:a=1,b=c", "x", {"a": "1", "b": "c"}),
        ("a=1", "a=1", {"a": "1"}),
        ("auto", "auto", {}),
        ("auto:", "auto", {}),
    ],
)
def test_variants(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_variant(text) == Variant(name, options)


def test_a_bad_variant() -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_variant("x:attention")


@pytest.mark.parametrize(("tied", "step_bytes"), [(False, 30), (True, 110)])
def test_what_a_step_reads(tmp_path: Path, tied: bool, step_bytes: int) -> None:
    tensors: dict[str, Any] = {
        "model.embed_tokens.weight": {"data_offsets": [0, 100]},
        "model.norm.weight": {"data_offsets": [100, 110]},
    }
    if not tied:
        tensors["lm_head.weight"] = {"data_offsets": [110, 130]}
    header = msgspec.json.encode(tensors)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert floor(tmp_path).step_bytes == step_bytes


def results() -> gpu.Results:
    def variant(name: str, *rates: float) -> dict[str, Any]:
        levels = [
            {"concurrency": level, "tokens_per_s": rate, "first_token_p50": 9.0, "gap_p50": 5.0}
            for level, rate in zip((1, 16), rates, strict=False)
        ]
        return {"name": name, "levels": levels, "error": "", "floor_share": 0.8}

    made = {"date": "2026-01-01T00:00Z", "cores": 2, "cpu_model": "x", "versions": {"torch": "2"}}
    found = gpu.Results(made)
    limit = {"weight_bytes": 15e9, "step_bytes": 14e9, "bytes_per_s": 3e12, "token_ms": 4.7}
    found.direct["direct"] = {"floor": limit, "variants": [variant("auto", 200, 2000)]}
    found.direct["variants"] = {"floor": limit, "variants": [variant("sync", 150, 3000), variant("cut", 900)]}
    found.served["auto"] = [{"concurrency": 16, "failed": 0, "tokens_per_s": 1960.0}]
    found.golden["auto"] = {"answers": 67, "alone": 67, "together": 66}
    found.stages["direct"] = "10 s: ok"
    return found


def test_the_summary_has_ratios() -> None:
    text = gpu.summary(results(), (1, 16))
    assert "98.0%" in text
    assert "80%" in text
    assert "| auto | 67 | 66 | 67 |" in text


def test_the_best_variant_has_all_levels() -> None:
    assert gpu.best(results(), (1, 16)) == "sync"


def test_variants_are_compared_without_prefix_sharing() -> None:
    assert gpu._fair("auto") == "auto:prefix_sharing=false"
    assert gpu._fair("x:a=1") == "x:a=1,prefix_sharing=false"
