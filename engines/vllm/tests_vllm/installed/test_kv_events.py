"""KV events of the real vLLM, by our settings: what a consumer rebuilds from them is what prompts find again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kv_events import Consumer
from tests_vllm.installed import cases
from tests_vllm.installed.conftest import KV_EVENTS_TOPIC, Served

pytestmark = pytest.mark.timeout(1800)


def follow(vllm: Served) -> Consumer:
    settings = vllm.settings
    return Consumer(settings.kv_events_endpoint, settings.kv_events_replay_endpoint, KV_EVENTS_TOPIC)


def reset(vllm: Served, consumer: Consumer) -> None:
    """Empty the cache. vLLM publishes with its next step, here that of a prompt which fills no block."""
    vllm.engine.reset_prefix_cache()
    vllm.ask([cases.asked(cases.prompt(705, 3), 1)])
    consumer.until(lambda: consumer.kinds[-1:] == ["AllBlocksCleared"])
    assert not consumer.blocks


@pytest.fixture
def consumer(vllm: Served) -> Iterator[Consumer]:
    """Its cache is empty, as vLLM's is: whatever other tests have asked is forgotten."""
    made = follow(vllm)
    reset(vllm, made)
    yield made
    made.close()


def found_again(consumer: Consumer, prompt: list[int]) -> int:
    """Tokens of a prompt that lie in blocks of the rebuilt cache; its last token is always computed."""
    known = {tuple(consumer.tokens(block_hash)) for block_hash in consumer.blocks}
    ends = range(block_size(consumer), len(prompt), block_size(consumer))
    return max((end for end in ends if tuple(prompt[:end]) in known), default=0)


def block_size(consumer: Consumer) -> int:
    (size,) = {len(block.token_ids) for block in consumer.blocks.values()}
    return size


def test_a_consumer_has_what_prompts_find(vllm: Served, consumer: Consumer) -> None:
    """Three conversations, of which two begin alike: their prompts and answers, without the block that is not full."""
    first = cases.prompt(700, 300)
    prompts = [first, [*first[:260], *cases.prompt(701, 200)], cases.prompt(702, 400)]
    answers = [vllm.ask([cases.asked(prompt, 100)])[0] for prompt in prompts]
    size = vllm.engine.stats().kv_block_size
    assert [answer.cached_tokens for answer in answers] == [0, 260 // size * size, 0]
    # The token that comes last is computed by no step: it is in no block.
    said = [[*prompt, *answer.tokens][:-1] for prompt, answer in zip(prompts, answers, strict=True)]
    expected = {tuple(tokens[:end]) for tokens in said for end in range(size, len(tokens) + 1, size)}
    consumer.until(lambda: {tuple(consumer.tokens(name)) for name in consumer.blocks} == expected)
    assert block_size(consumer) == size
    # The next turns find what the consumer says that they find, no more and no less.
    turns = [[*tokens, *cases.prompt(703, 60)] for tokens in said]
    turns += [first[:200], cases.prompt(704, 200)]
    predicted = [found_again(consumer, turn) for turn in turns]
    assert [vllm.ask([cases.asked(turn, 2)])[0].cached_tokens for turn in turns] == predicted
    assert predicted[0] > 300
    assert predicted[-1] == 0
    # A consumer that comes late has all of it from the replay.
    consumer.catch_up()
    late = follow(vllm)
    late.catch_up()
    assert (late.blocks, late.replayed) == (consumer.blocks, consumer.next_number)
    late.close()
    reset(vllm, consumer)
