"""KV events of the embedded engine: what a consumer rebuilds from them is what the prefix cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import compute_block_hash

from openai_bls.core.manifest import EngineLoadError
from tests.engine_contract.support import request, run_all
from tests.kv_events import Consumer
from tests_transformers.engine.adapters import QUERIES, make_adapter, with_adapters
from tests_transformers.engine.engine.test_engine import PROMPTS
from tests_transformers.engine.overlapping import ways

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory

__all__ = ["ways"]  # a fixture

PAGE = 32
TOPIC = "kv@pod@demo"


@pytest.fixture
def endpoints(tmp_path: Path) -> dict[str, str]:
    return {name: f"ipc://{tmp_path}/{name}" for name in ("kv_events_endpoint", "kv_events_replay_endpoint")}


def follow(endpoints: dict[str, str]) -> Consumer:
    return Consumer(endpoints["kv_events_endpoint"], endpoints["kv_events_replay_endpoint"], TOPIC)


@pytest.fixture
def consumer(endpoints: dict[str, str]) -> Iterator[Consumer]:
    made = follow(endpoints)
    yield made
    made.close()


def cached(engine: Any) -> set[int]:
    """Hashes of the pages that the engine's own table has."""
    (allocator,) = engine._batcher._manager.batch_processor.cache.cache_allocators.values()
    return set(allocator.ledger.hash_to_block)


@pytest.mark.usefixtures("ways")
def test_a_consumer_has_what_the_cache_has(start: EngineFactory, endpoints: dict[str, str], consumer: Consumer) -> None:
    """A cache of 32 pages, through which eight conversations of five pages each go, some at the same time."""
    engine, recorder = start(max_tokens_in_kv_cache="1024", kv_events_topic=TOPIC, **endpoints)
    conversations = [[n + 1, *PROMPTS[-1]] for n in range(8)]
    for i, some in enumerate([[0, 1, 2], [0], [3, 4, 0], [5], [0, 6, 7]]):
        run_all(engine, recorder, [request(10 * i + n, prompt=conversations[n], max_tokens=40) for n in some])
        consumer.until(lambda: set(consumer.blocks) == cached(engine))
    assert {"BlockStored", "BlockRemoved"} <= set(consumer.kinds)
    # The tokens are those that the hashes are of, prompts and answers, and each block's beginning is there.
    answered = 0
    for block_hash in consumer.blocks:
        tokens, expected = consumer.tokens(block_hash), None
        for at in range(0, len(tokens), PAGE):
            expected = compute_block_hash(expected, tokens[at : at + PAGE])
        assert block_hash == expected
        answered += len(tokens) > len(conversations[0])
    assert answered
    # A consumer that comes late has all of it from the replay.
    late = follow(endpoints)
    late.catch_up()
    assert (late.blocks, late.replayed) == (consumer.blocks, consumer.next_number)
    late.close()
    engine.reset_prefix_cache()
    consumer.until(lambda: not consumer.blocks)
    assert consumer.kinds[-1] == "AllBlocksCleared"


def test_blocks_of_adapters_have_their_names(
    checkpoint: Path,
    version_dir: Path,
    tmp_path: Path,
    start: EngineFactory,
    endpoints: dict[str, str],
    consumer: Consumer,
) -> None:
    adapter = make_adapter(checkpoint, tmp_path / "pirate", **QUERIES)
    folder = with_adapters(version_dir, tmp_path / "1", {"pirate": adapter}, max_loras=1, max_lora_rank=8)
    engine, recorder = start(folder, kv_events_topic=TOPIC, **endpoints)
    prompt = PROMPTS[-1]
    asked = [request(0, prompt=prompt, max_tokens=4), request(1, prompt=prompt, max_tokens=4, lora_name="pirate")]
    run_all(engine, recorder, asked)
    consumer.until(lambda: set(consumer.blocks) == cached(engine))
    same = [block.lora_name for block in consumer.blocks.values() if block.token_ids == tuple(prompt[:PAGE])]
    assert sorted(same, key=str) == [None, "pirate"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runner": "dynamic_cache"}, "continuous_batching"),
        ({"prefix_sharing": "false"}, "share"),
        ({"kv_events_endpoint": "tcp://nowhere"}, "kv_events_endpoint 'tcp://nowhere' "),
        ({"kv_events_endpoint": ""}, "need kv_events_endpoint"),
    ],
)
def test_what_cannot_publish_does_not_load(
    start: EngineFactory, endpoints: dict[str, str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(EngineLoadError, match=said):
        start(**endpoints | options)
