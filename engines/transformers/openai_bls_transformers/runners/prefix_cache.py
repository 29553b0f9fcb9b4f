"""Prefix cache: pages of ended sequences, found by prefix, adapter and images, evicted least recently used first.

Continuous batching finds pages by a hash of the tokens up to their end. The same prompt under another adapter has other
keys and values: the number of a sequence's adapter, which its key holds, goes into that hash with the first two tokens.
So has the same prompt with another image: a number of the image's own goes into the hash in the place of each of its
tokens.

When the cache is full, transformers evicts all of them at once: the step waits for that, and after it every
conversation is computed anew. A small part of them is enough.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from typing import Any

from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.requests import RequestStatus

from openai_bls.engines.not_finite import NOT_FINITE
from openai_bls_transformers.runners.prompt_embeddings import PromptEmbeddings

ImagesOf = Callable[[str], PromptEmbeddings | None]
"""Gives the images of the sequence with a key."""

_PACKAGE = "transformers.generation.continuous_batching"
# Share of the cache's pages that are evicted at a time.
_EVICTED_PART = 1 / 64
# Bits of a token id, and of the adapter's number that go with one; the hash takes 32.
_TOKEN_BITS = 20
_NUMBER_BITS = 10


def key(number: int, adapter: int) -> str:
    """Key of a sequence with an adapter."""
    return f"{number}@{adapter}"


def can_share_by_adapter() -> bool:
    """True if the installed continuous batching looks pages up as is expected here."""
    return hasattr(PagedAttentionCache, "search_prefix_match") and find_spec(f"{_PACKAGE}.cache_allocators") is not None


def share(cache: Any, *, by_adapter: bool, images_of: ImagesOf | None) -> None:
    """Let sequences find pages that are what their own would be, and no others.

    Args:
        cache: transformers' paged cache.
        by_adapter: sequences may have adapters.
        images_of: gives the images of the sequence with a key; None if no prompt holds any.
    """
    _share_finite(cache)
    if by_adapter:
        _change_keys(cache, _with_adapter)
    if images_of is not None:
        _change_keys(cache, functools.partial(_with_images, images_of))


def _change_keys(cache: Any, change: Callable[..., Any]) -> None:
    """Let `change` call what looks pages up and notes them, as it likes."""
    if not can_share_by_adapter():
        return
    cache.search_prefix_match = functools.partial(change, cache.search_prefix_match)
    for allocator in cache.cache_allocators.values():
        allocator.mark_complete_blocks = functools.partial(change, allocator.mark_complete_blocks)


def _with_adapter(look: Callable[..., Any], request_id: str, token_ids: list[int], *more: Any) -> Any:
    _, _, adapter = request_id.partition("@")
    if adapter and len(token_ids) > 1:
        high, low = divmod(int(adapter), 1 << _NUMBER_BITS)
        token_ids = [token_ids[0] + (low << _TOKEN_BITS), token_ids[1] + (high << _TOKEN_BITS), *token_ids[2:]]
    return look(request_id, token_ids, *more)


def _with_images(
    images_of: ImagesOf, look: Callable[..., Any], request_id: str, token_ids: list[int], *more: Any
) -> Any:
    images = images_of(request_id)
    return look(request_id, token_ids if images is None else images.keyed(token_ids), *more)


def _share_finite(cache: Any) -> None:
    """Let no sequence find pages of one that has failed or ended with `NOT_FINITE`.

    Attention multiplies what a query does not see by zero, and zero times NaN is NaN: pages before the token that is at
    fault, such as a system prompt's, are spoiled as well.
    """
    if not can_share_by_adapter():
        return
    mark = cache.mark_complete_blocks

    def marked(state: Any, complete: Any) -> None:
        if state.error is not None or state.generated_tokens[-1:] == [NOT_FINITE]:
            _forget(cache, state.request_id)
        else:
            mark(state, complete)

    cache.mark_complete_blocks = marked


def note_pieces(ios: Any, cache: Any) -> None:
    """Let the pages of a prompt's next-to-last piece be noted when steps overlap.

    Its results are looked at when the last piece is launched already: the sequence counts as decoding then, and
    transformers notes no pages of a decoding sequence without a new token. The pages of later steps would be noted in
    their place, and never all.

    Args:
        ios: transformers' inputs and outputs of steps.
        cache: transformers' paged cache, which `share` has prepared.
    """
    if not can_share_by_adapter():
        return
    look = ios.prepare_batch_update

    def looked_at() -> Any:
        results = look()
        for item in results[0]:
            if not item.has_new_token and item.state._status is RequestStatus.DECODING:
                cache.mark_complete_blocks(item.state, item.complete_blocks)
        return results

    ios.prepare_batch_update = looked_at


def _forget(cache: Any, request_id: str) -> None:
    """Let the pages of a sequence not be found any more."""
    for allocator in cache.cache_allocators.values():
        ledger = allocator.ledger
        for page in allocator.block_table.get(request_id, []):
            if (found := ledger.block_to_hash.pop(page, None)) is not None:
                ledger.hash_to_block.pop(found, None)


def evict(cache: Any, free: float) -> None:
    """Evict cached pages, least recently used first, until `free` of the cache is free, or none is left."""
    allocators = cache.cache_allocators.values()
    while cache.compute_free_capacity() < free and any(allocator.ledger.cached_blocks for allocator in allocators):
        for allocator in allocators:
            _evict_part(cache, allocator)


def _evict_part(cache: Any, allocator: Any) -> None:
    ledger = allocator.ledger
    pages = list(islice(ledger.cached_blocks, math.ceil(allocator.num_blocks * _EVICTED_PART)))
    for page in pages:
        del ledger.cached_blocks[page]
        del ledger.hash_to_block[ledger.block_to_hash.pop(page)]
    cache.pool.free_blocks(allocator.index, pages)


def release_last_page_first(cache: Any, request_id: str) -> None:
    """Let a sequence's last page count as the least recently used: prompts have the first ones in common."""
    for allocator in getattr(cache, "cache_allocators", {}).values():
        allocator.block_table.get(request_id, []).reverse()
