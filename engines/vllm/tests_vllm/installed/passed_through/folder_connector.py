"""KV connector of vLLM's that leaves the KV cache of a prompt in a folder, and takes it from there.

It runs in vLLM's interpreter, which loads it by the name of this module. A request with the parameters
`{"leave": true}` leaves its prompt, and gets back the parameters with which another one takes it.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class Moves(KVConnectorMetadata):  # type: ignore[misc]
    """What the next step leaves and takes: blocks by the name of a file."""

    def __init__(self) -> None:
        self.left: dict[str, list[int]] = {}
        self.taken: dict[str, list[int]] = {}


class FolderConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The scheduler's half, and the worker's."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._folder = Path(vllm_config.kv_transfer_config.get_from_extra_config("folder", ""))
        self._block_size = vllm_config.cache_config.block_size
        self._num_blocks = kv_cache_config.num_blocks
        self._leaving: dict[str, str] = {}
        self._taking: dict[str, str] = {}
        self._caches: dict[str, torch.Tensor] = {}

    # The scheduler's half.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Number of tokens that are taken, in whole blocks: the last token is always computed."""
        asked = request.kv_transfer_params or {}
        if asked.get("leave"):
            self._leaving[request.request_id] = uuid.uuid4().hex
        if "left" not in asked:
            return 0, False
        whole = (request.num_prompt_tokens - 1) // self._block_size * self._block_size
        return max(0, whole - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take what was found, now that there are blocks for it."""
        if num_external_tokens:
            self._taking[request.request_id] = request.kv_transfer_params["left"]

    def build_connector_meta(self, scheduler_output: Any) -> Moves:
        """Blocks of the requests that begin with this step."""
        moves = Moves()
        for new in scheduler_output.scheduled_new_reqs:
            if (name := self._taking.pop(new.req_id, None)) is not None:
                moves.taken[name] = new.block_ids[0]
            if (name := self._leaving.get(new.req_id)) is not None:
                moves.left[name] = new.block_ids[0]
        return moves

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Parameters that take what the request has left."""
        name = self._leaving.pop(request.request_id, None)
        return False, None if name is None else {"left": name, "num_tokens": request.num_prompt_tokens}

    # The worker's half.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Keep the caches of the layers."""
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy what is taken, before the pass that needs it."""
        for name, blocks in self._moves().taken.items():
            for layer, kept in torch.load(self._folder / name).items():
                cache, axis = self._cache(layer)
                count = min(len(blocks), kept.shape[axis])
                cache.index_copy_(axis, torch.tensor(blocks[:count]), kept.narrow(axis, 0, count))

    def wait_for_save(self) -> None:
        """Copy what is left, after the pass that computed all of it."""
        for name, blocks in self._moves().left.items():
            kept = {}
            for layer in self._caches:
                cache, axis = self._cache(layer)
                kept[layer] = cache.index_select(axis, torch.tensor(blocks))
            torch.save(kept, self._folder / name)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Every layer was copied at the beginning."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Every layer is copied at the end."""

    def _moves(self) -> Moves:
        moves = self._get_connector_metadata()
        assert isinstance(moves, Moves)
        return moves

    def _cache(self, layer: str) -> tuple[torch.Tensor, int]:
        """A layer's cache, and which of its axes counts the blocks."""
        cache = self._caches[layer]
        return cache, list(cache.shape).index(self._num_blocks)
