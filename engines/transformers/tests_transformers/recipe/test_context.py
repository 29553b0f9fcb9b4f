"""A context that is longer than memory: capped where the checkpoint asks for it, refused where the user does."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from openai_bls.core.machine.memory import available_bytes
from openai_bls.core.manifest import KvCacheSettings
from openai_bls_transformers.recipe import building
from tests.unit.builder.builds import answer, refusal, run

CONTEXT = 10_485_760


@pytest.fixture
def long_source(source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with the context of Llama 4 Scout, on a machine that has 256 MiB for a KV cache."""
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    fraction = (256 << 20) / available_bytes()
    monkeypatch.setattr(building, "KvCacheSettings", partial(KvCacheSettings, free_memory_fraction=fraction))
    return source


def test_the_context_is_capped(long_source: Path, repository: Path) -> None:
    manifest, lines = run(long_source, repository, self_test=True)
    assert 0 < manifest.max_model_len < CONTEXT // 10
    (told,) = (line for line in lines if "--max-model-len" in line)
    for part in (f"context of {manifest.max_model_len} tokens", f"{CONTEXT:,} tokens", "--max-tokens-in-kv-cache"):
        assert part in told
    assert len(answer(repository)) == 8
    again, lines = run(long_source, repository, self_test=True)
    assert again == manifest
    assert "is up to date" in lines[-1]


def test_a_context_that_is_asked_for_is_refused(long_source: Path, repository: Path) -> None:
    told = refusal(long_source, repository, self_test=True, max_model_len=CONTEXT)
    for part in (f"{CONTEXT:,} tokens", "--max-model-len", "--max-tokens-in-kv-cache"):
        assert part in told
