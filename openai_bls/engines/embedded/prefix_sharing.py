"""Prefix sharing by adapter: the same prompt under another adapter has other keys and values.

Continuous batching finds pages by a hash of the tokens up to their end. The number of a sequence's adapter, which its
key holds, goes into that hash with the first two tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from transformers.generation.continuous_batching.cache import PagedAttentionCache

_PACKAGE = "transformers.generation.continuous_batching"
# Bits of a token id, and of the adapter's number that go with one; the hash takes 32.
_TOKEN_BITS = 20
_NUMBER_BITS = 10


def key(number: int, adapter: int) -> str:
    """Key of a sequence with an adapter."""
    return f"{number}@{adapter}"


def can_share_by_adapter() -> bool:
    """True if the installed continuous batching looks pages up as is expected here."""
    return hasattr(PagedAttentionCache, "search_prefix_match") and find_spec(f"{_PACKAGE}.cache_allocators") is not None


def share_by_adapter(cache: Any) -> None:
    """Let sequences find the pages of their own adapter alone."""
    if not can_share_by_adapter():
        return
    cache.search_prefix_match = functools.partial(_with_adapter, cache.search_prefix_match)
    for allocator in cache.cache_allocators.values():
        allocator.mark_complete_blocks = functools.partial(_with_adapter, allocator.mark_complete_blocks)


def _with_adapter(look: Callable[..., Any], request_id: str, token_ids: list[int], *more: Any) -> Any:
    _, _, adapter = request_id.partition("@")
    if adapter and len(token_ids) > 1:
        high, low = divmod(int(adapter), 1 << _NUMBER_BITS)
        token_ids = [token_ids[0] + (low << _TOKEN_BITS), token_ids[1] + (high << _TOKEN_BITS), *token_ids[2:]]
    return look(request_id, token_ids, *more)
