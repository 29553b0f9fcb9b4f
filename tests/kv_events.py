"""A consumer of KV events, as gateways have one: it follows what is published, asks for what it has missed, and
rebuilds what the prefix cache of an engine holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import zmq

_WAIT_S = 60


class Block(NamedTuple):
    """A block of the cache."""

    parent: Any
    token_ids: tuple[int, ...]
    lora_name: str | None
    extra_keys: Any = None


class Consumer:
    """Reads both of vLLM's encodings: events as maps, and as arrays before 0.30."""

    def __init__(self, endpoint: str, replay_endpoint: str, topic: str = "") -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.connect(endpoint)
        self._sub.subscribe(topic)
        self._replay = self._context.socket(zmq.DEALER)
        self._replay.connect(replay_endpoint)
        self._topic = topic
        self.next_number = 0
        self.replayed = 0
        """Batches that came by a replay."""
        self.blocks: dict[Any, Block] = {}
        """Contents of the cache by hash."""
        self.kinds: list[str] = []
        self._knows_all = False
        """False while it may have missed events that are kept no more."""

    def close(self) -> None:
        self._context.destroy(linger=0)

    def until(self, condition: Callable[[], bool]) -> None:
        """Follow what is published until the cache's content is as it should be."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            self.catch_up()
            if condition():
                return
            assert time.monotonic() < deadline, (len(self.blocks), self.kinds[-20:])
            if self._sub.poll(200):
                topic, number, payload = self._sub.recv_multipart()
                assert topic.decode() == self._topic
                # A consumer that comes late, or is slow, has missed some.
                if int.from_bytes(number, "big") == self.next_number:
                    self._take(self.next_number, payload)

    def catch_up(self) -> None:
        """Ask for all that was published and has not come."""
        self._replay.send_multipart((b"", self.next_number.to_bytes(8, "big")))
        while True:
            assert self._replay.poll(_WAIT_S * 1000)
            _, topic, number, payload = self._replay.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                return
            assert topic.decode() == self._topic
            assert int.from_bytes(number, "big") == self.next_number or not self._knows_all
            self.replayed += 1
            self._take(int.from_bytes(number, "big"), payload)

    def tokens(self, block_hash: Any) -> list[int]:
        """All tokens up to the end of a block, from the beginning of its prompt."""
        block = self.blocks[block_hash]
        return [*(self.tokens(block.parent) if block.parent is not None else []), *block.token_ids]

    def _take(self, number: int, payload: bytes) -> None:
        self._knows_all |= number == 0
        self.next_number = number + 1
        sent_at, events, *_ = msgspec.msgpack.decode(payload)
        assert abs(time.time() - sent_at) < 24 * 3600
        for event in events:
            named = event if isinstance(event, dict) else _named(event)
            self._knows_all |= named["type"] == "AllBlocksCleared"
            if self._knows_all:
                self._apply(named)

    def _apply(self, event: dict[str, Any]) -> None:
        self.kinds.append(event["type"])
        match event["type"]:
            case "BlockStored":
                size, parent = event["block_size"], event["parent_block_hash"]
                assert len(event["token_ids"]) == size * len(event["block_hashes"])
                assert parent is None or parent in self.blocks
                extra_keys = event.get("extra_keys") or [None] * len(event["block_hashes"])
                for at, block_hash in enumerate(event["block_hashes"]):
                    token_ids = tuple(event["token_ids"][at * size : (at + 1) * size])
                    self.blocks[block_hash] = Block(parent, token_ids, event.get("lora_name"), extra_keys[at])
                    parent = block_hash
            case "BlockRemoved":
                for block_hash in event["block_hashes"]:
                    del self.blocks[block_hash]
            case "AllBlocksCleared":
                self.blocks.clear()


def _named(event: list[Any]) -> dict[str, Any]:
    names = {
        "BlockStored": [
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
        ],
        "BlockRemoved": ["block_hashes", "medium"],
        "AllBlocksCleared": [],
    }[event[0]]
    return {"type": event[0], **dict(zip(names, event[1:], strict=False))}
