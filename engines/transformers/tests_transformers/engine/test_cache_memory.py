"""Memory for the longest sequence: what is refused, and what is said to fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import ContinuousBatchingConfig, Qwen2Config
from transformers.generation.continuous_batching import cache

from openai_bls_transformers.cache_memory import ContextLengthError, require_context
from openai_bls_transformers.runners.preparation import _bytes_beside_cache

MEMORY = 1 << 30


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_context_that_does_not_fit(on_gpu: bool) -> None:
    require_context(MEMORY // 1024, 1024, MEMORY, on_gpu=on_gpu)
    with pytest.raises(ContextLengthError) as caught:
        require_context(MEMORY // 1024 + 1, 1024, MEMORY, on_gpu=on_gpu)
    fits = caught.value.fits
    assert 0 < fits < MEMORY // 1024
    require_context(fits, 1024, MEMORY, on_gpu=on_gpu)
    for told in (f"{MEMORY // 1024 + 1:,} tokens", f"{fits:,} tokens", "--max-model-len", "--max-tokens-in-kv-cache"):
        assert told in str(caught.value)


def test_one_token_is_the_least() -> None:
    with pytest.raises(ContextLengthError) as caught:
        require_context(10, 1024, 100, on_gpu=False)
    assert caught.value.fits == 1


def test_nothing_is_known_of_a_token() -> None:
    require_context(1 << 60, 0, MEMORY, on_gpu=True)


@pytest.mark.skipif(not hasattr(cache, "PagedAttentionMemoryHandler"), reason="another transformers plans otherwise")
def test_what_transformers_puts_aside_for_a_longer_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two contexts, one twice as long, by its own plan and by ours."""
    handler = cache.PagedAttentionMemoryHandler
    monkeypatch.setattr(handler, "get_available_memory", lambda self: MEMORY)
    config = Qwen2Config(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager")
    config._attn_implementation = "flash_attention_2"  # which needs no mask, as ours
    tokens, page, steps = 1 << 20, 32, 4096

    def planned(length: int) -> int:
        settings = ContinuousBatchingConfig(max_blocks_per_request=length // page, use_async_batching=True)
        made = handler(config, settings, torch.bfloat16, 1, 1, 1, ["full_attention"], True)
        return int(steps * made.bytes_per_batch_token + length * made.bytes_per_cache_token)

    model = SimpleNamespace(config=config, dtype=torch.bfloat16)
    assert _bytes_beside_cache(model, steps, page) * tokens == planned(2 * tokens) - planned(tokens)
