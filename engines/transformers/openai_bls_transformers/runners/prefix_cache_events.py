"""KV events of the prefix cache of continuous batching: what it has got and lost since the last step.

transformers' ledger of pages adds a hash when a page is complete and removes it when the page is evicted, in one dict;
a dict of the same kind that takes notes stands in its place. Which tokens a new hash is of tells the call that adds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from openai_bls.engines.kv_events.events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored, Event
from openai_bls_transformers.runners.prefix_cache import ImagesOf, can_share_by_adapter

AdapterName = Callable[[int], str]
"""Name of the adapter with a number."""


class _Hashes(dict[int, int]):
    """Page by hash of its contents, which notes what comes and goes."""

    def __init__(self, pages: dict[int, int], removed: Callable[[int | None], None]) -> None:
        super().__init__(pages)
        self.added: list[int] = []
        self._removed = removed

    def __setitem__(self, block_hash: int, page: int) -> None:
        super().__setitem__(block_hash, page)
        self.added.append(block_hash)

    def __delitem__(self, block_hash: int) -> None:
        super().__delitem__(block_hash)
        self._removed(block_hash)

    def pop(self, block_hash: int, *default: Any) -> Any:
        """Remove a hash; as of a dict."""
        present = block_hash in self
        page = super().pop(block_hash, *default)
        if present:
            self._removed(block_hash)
        return page

    def clear(self) -> None:
        """Remove all hashes."""
        super().clear()
        self._removed(None)


class PrefixCacheEvents:
    """Events of one paged cache, in order; belongs to the engine's thread."""

    def __init__(self, cache: Any, images_of: ImagesOf) -> None:
        """Watch a cache whose allocators may share pages; only after `prefix_cache.share`.

        Args:
            cache: transformers' paged cache.
            images_of: gives the images of the sequence with a key.

        Raises:
            ValueError: the cache is built otherwise, or shares no pages.
        """
        if not can_share_by_adapter() or not getattr(cache, "use_prefix_sharing", False):
            raise ValueError("this model's prompts share no KV cache, so that there are no events of it")
        self._events: list[Event] = []
        self._images_of = images_of
        for allocator in cache.cache_allocators.values():
            removed = functools.partial(self._removed, allocator.index)
            allocator.ledger.hash_to_block = _Hashes(allocator.ledger.hash_to_block, removed)
            mark = functools.partial(self._mark, allocator, allocator.mark_complete_blocks)
            allocator.mark_complete_blocks = mark

    def take(self, adapter_name: AdapterName) -> list[Event]:
        """Events since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return [_with_name(event, adapter_name) for event in events]

    def cleared(self) -> None:
        """Note that nothing is left."""
        self._events.append(AllBlocksCleared())

    def _mark(
        self, allocator: Any, mark: Callable[..., None], request_id: str, token_ids: list[int], *more: Any
    ) -> None:
        """Let transformers note the pages that a step has completed, and tell of those that are new."""
        hashes: _Hashes = allocator.ledger.hash_to_block
        mark(request_id, token_ids, *more)
        if not hashes.added:
            return
        added, hashes.added = set(hashes.added), []
        parent: int | None = None
        run: list[int] = []
        begin = 0
        before: int | None = None
        for index, page in enumerate(allocator.block_table[request_id]):
            block_hash = allocator.ledger.block_to_hash.get(page)
            if block_hash in added:
                if not run:
                    begin, parent = index, before
                run.append(block_hash)
                added.remove(block_hash)
            elif run:
                self._stored(allocator, request_id, run, parent, token_ids, begin)
                run = []
            if not added or block_hash is None:
                break
            before = block_hash
        if run:
            self._stored(allocator, request_id, run, parent, token_ids, begin)

    def _stored(
        self,
        allocator: Any,
        request_id: str,
        hashes: list[int],
        parent: int | None,
        token_ids: list[int],
        begin: int,
    ) -> None:
        """Note pages from index `begin` of a sequence on."""
        _, _, adapter = request_id.partition("@")
        size = allocator.tokens_per_page
        starts = range(begin * size, (begin + len(hashes)) * size, size)
        images = self._images_of(request_id)
        keys = None if images is None else [images.extra_keys(start, start + size) for start in starts]
        self._events.append(
            BlockStored(
                block_hashes=hashes,
                parent_block_hash=parent,
                token_ids=list(token_ids[starts.start : starts.stop]),
                block_size=size,
                lora_id=int(adapter) if adapter else None,
                medium=MEDIUM_GPU,
                lora_name=None,
                extra_keys=keys if keys and any(keys) else None,
                group_idx=allocator.index,
            )
        )

    def _removed(self, group: int, block_hash: int | None) -> None:
        if block_hash is None:
            self.cleared()
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved) and last.group_idx == group:
            # Pages are evicted many at a time.
            last.block_hashes.append(block_hash)
        else:
            self._events.append(BlockRemoved([block_hash], MEDIUM_GPU, group))


def _with_name(event: Event, adapter_name: AdapterName) -> Event:
    if not isinstance(event, BlockStored) or event.lora_id is None:
        return event
    name = adapter_name(event.lora_id)
    return msgspec.structs.replace(event, lora_name=name, extra_keys=[(name,)] * len(event.block_hashes))
