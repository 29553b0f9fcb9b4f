"""Distances of both runners to plain passes, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine import parse_variant
from benchmarks.runners import VARIANTS, Distance, make_model, measure_distances
from openai_bls.embedded.runners.sampler import Sampler


def test_distances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model("gemma2", tmp_path, 32)
    batching, _, _, dynamic = (parse_variant(text) for text in VARIANTS)
    found = measure_distances(tmp_path, "gemma2", [batching, dynamic])
    assert [(one.good, 0 < one.mean < 1e-5, one.refused) for one in found] == [(True, True, "")] * 2
    pick = Sampler.pick
    monkeypatch.setattr(Sampler, "pick", lambda self, last, logits, args: pick(self, last, logits * 1.5, args))
    (wrong,) = measure_distances(tmp_path, "gemma2", [dynamic])
    assert not wrong.good


def test_rounding_is_what_a_plain_pass_has_too() -> None:
    assert Distance("m", "v", mean=0.01, plain=0.01).good
    assert not Distance("m", "v", mean=0.02, plain=0.01).good
