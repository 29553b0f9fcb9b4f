"""Size of the KV cache: parts where the longest sequences fit, else one cache for all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import EngineLoadError, KvCacheSettings, Manifest
from openai_bls_llama_cpp import memory
from openai_bls_llama_cpp.memory import KvCache

FACTS = CheckpointFacts("", "", 8, 8192, 2_000, (), None, SamplingParams())


def manifest(places: int, longest: int, asked: int = 0) -> Manifest:
    cache = KvCacheSettings(max_tokens_in_kv_cache=asked)
    return Manifest("llama_cpp", "tiny", longest, places, created=1, kv_cache=cache)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 1 kB, beside which there is room for 100,000 tokens of 1 kB."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 125_001_000)
    (tmp_path / "model.gguf").write_bytes(bytes(1_000))
    return tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("places", "longest", "asked", "expected"),
    [
        (8, 1_024, 8_192, KvCache(8_192, in_parts=True)),
        (8, 1_024, 8_191, KvCache(8_191)),
        # No sequence would use more of its part.
        (8, 1_024, 20_000, KvCache(8_192, in_parts=True)),
        # Parts may take 0.4 of the memory.
        (8, 5_000, 0, KvCache(40_000, in_parts=True)),
        (8, 5_001, 0, KvCache(32_768)),
        (64, 1_024, 0, KvCache(8_192)),
        (2, 60_000, 0, KvCache(60_000)),
        (1, 60_000, 0, KvCache(60_000, in_parts=True)),
    ],
)
def test_parts_where_they_fit(file: Path, places: int, longest: int, asked: int, expected: KvCache) -> None:
    assert memory.kv_cache(manifest(places, longest, asked), FACTS, file) == expected


def test_what_does_not_fit(file: Path) -> None:
    with pytest.raises(EngineLoadError, match=r" 100,001 .* 100,000 tokens "):
        memory.kv_cache(manifest(1, 100_001), FACTS, file)
    with pytest.raises(EngineLoadError, match=r"max_tokens_in_kv_cache 99 .* 100 tokens"):
        memory.kv_cache(manifest(1, 100, 99), FACTS, file)


def test_without_the_size_of_a_token_parts_are_no_larger_than_one_cache(file: Path) -> None:
    unknown = msgspec.structs.replace(FACTS, kv_bytes_per_token=0)
    assert memory.kv_cache(manifest(8, 4_096), unknown, file) == KvCache(32_768, in_parts=True)
    assert memory.kv_cache(manifest(8, 4_097), unknown, file) == KvCache(32_768)
    assert "GB" not in memory.described(KvCache(32_768), 64, unknown)


def test_sequences_at_once_where_nothing_is_said(file: Path) -> None:
    assert memory.default_places(manifest(1, 5_000), FACTS, file) == 8
    assert memory.default_places(manifest(1, 5_001), FACTS, file) == 64
    assert memory.default_places(manifest(1, 5_000, 39_999), FACTS, file) == 64
    cache = memory.kv_cache(manifest(8, 5_000), FACTS, file)
    assert memory.described(cache, 8, FACTS) == "40,000 tokens (0.0 GB), 5,000 for each of 8 sequences"
