"""Lists of texts: prepared a few at a time, so that no list is another key's wait, with the answer of one piece."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.transport.ipc import prompts
from openai_bls.transport.ipc.prompt_server import PromptExchangeServer
from openai_bls.transport.ipc.prompts import LONG_BYTES, PromptExchangeClient, encode_request
from tests.unit.core_support import WAIT_S, exchange_address

BAD = "bad"
Text = str | tuple[str, str]


def tokens(text: Text) -> list[int]:
    """One for each character, less one of them."""
    return list(range(len("".join(text)) % 50))


def prepared(request: PromptRequest) -> PromptResult:
    """As preprocessing answers, whatever pieces a list comes in."""
    texts: list[Text] = [*(request.prompts or request.pairs or [])]
    for at, text in enumerate(texts):
        if BAD in text:
            return PromptResult(error="no", param=f"prompt[{at}]" if len(texts) > 1 else "prompt", code="c")
    begins = [len(pair[0]) for pair in request.pairs or ()]
    words = [[len(word)] for word in request.bad_words]
    return PromptResult(list(map(tokens, texts)), words, list(range(len(request.prediction or ""))), begins)


class World:
    """A preprocessing that notes its requests."""

    def __init__(self) -> None:
        self.address = exchange_address()
        self.seen: list[PromptRequest] = []
        self.go = threading.Event()
        self.go.set()
        self.has_begun = threading.Event()
        self.server = PromptExchangeServer(self.address, self._prepare, 2)
        self.server.start()

    def _prepare(self, request: PromptRequest) -> PromptResult:
        if request.prompts != ["ready"]:
            self.seen.append(request)
            self.has_begun.set()
            assert self.go.wait(WAIT_S)
        return prepared(request)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.server.close()


SIZES = st.integers(0, 60) | st.integers(0, LONG_BYTES) | st.sampled_from([LONG_BYTES // 2, 3 * LONG_BYTES])
TEXTS = st.builds(lambda letter, size: letter * size, st.sampled_from(["a", "ü", "🙂"]), SIZES) | st.just(BAD)
SMALL = st.lists(TEXTS, min_size=1, max_size=12) | st.integers(1, 2048).map(lambda count: ["a" * 100] * count)
REQUESTS = st.builds(PromptRequest, prompts=SMALL, bad_words=st.just(["x"]), prediction=st.just("yy")) | st.builds(
    PromptRequest, pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8)
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_a_list_is_prepared_as_if_it_were_one(world: World, request: PromptRequest) -> None:
    world.seen.clear()

    async def ask() -> PromptResult:
        client = PromptExchangeClient(world.address)
        try:
            return await client.prepare(request)
        finally:
            await client.close()

    assert asyncio.run(ask()) == prepared(request)
    for part in world.seen:
        texts: list[Text] = [*(part.prompts or part.pairs or [])]
        assert len(texts) == 1 or len(encode_request(part)) <= LONG_BYTES


async def test_a_short_prompt_and_a_list_of_another_key_do_not_wait_for_a_list(world: World) -> None:
    client = PromptExchangeClient(world.address)
    world.seen.clear()
    world.has_begun.clear()
    world.go.clear()
    many = PromptRequest(prompts=["a" * 1000] * 2000, key="alice")
    hers = [asyncio.ensure_future(client.prepare(many)) for _ in range(3)]
    await asyncio.get_running_loop().run_in_executor(None, world.has_begun.wait, WAIT_S)
    # A key has one list in preprocessing.
    assert len(world.seen) == 1
    his = [
        asyncio.ensure_future(client.prepare(PromptRequest(prompts=texts, key="bob")))
        for texts in (["b"], ["b" * 1000] * 100, ["b" * 2 * LONG_BYTES])
    ]
    world.go.set()
    await asyncio.gather(*his)
    assert not any(one.done() for one in hers)
    for one in hers:
        one.cancel()
    await asyncio.gather(*hers, return_exceptions=True)
    await client.close()


async def test_the_tokens_of_a_list_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_LIST_TOKENS", 10_000)
    client = PromptExchangeClient(world.address)
    world.seen.clear()
    result = await client.prepare(PromptRequest(pairs=[("q" * 20_048, "d")] * 2048))
    assert (result.code, result.param) == ("too_many_tokens", "prompt")
    # What is beyond the bound has not been prepared.
    assert 10_000 < sum(len(tokens(pair)) for part in world.seen for pair in part.pairs or ()) < 10_200
    await client.close()
