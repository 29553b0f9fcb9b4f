"""Memory for the longest sequence: what is refused, and what is said to fit."""

from __future__ import annotations

import pytest

from openai_bls.embedded.cache_memory import ContextLengthError, require_context

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
