"""Log-probabilities of prompts on the exchange: what travels, in which order, and what the client gets."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, PromptLogprobs, TokenDelta
from openai_bls.core.logprobs import BLOCK_BYTES
from openai_bls.transport.ipc.frames import ClientFrame, PromptBlock, ServerFrame
from openai_bls.transport.ipc.prompt_blocks import BlockReceiver, BlockSender
from tests.unit.core_support import until
from tests.unit.transport.ipc.test_exchange import Listener, running
from tests.unit.transport.ipc.test_server import Peer, served


def of_a_prompt(blocks: int, size: int = 12) -> PromptLogprobs:
    return PromptLogprobs(1, [os.urandom(size) for _ in range(blocks)])


def asking(request_id: int) -> GenerationRequest:
    return GenerationRequest(request_id, [1, 2], 5, prompt_logprobs=1)


def answer(request_id: int, blocks: int | None, tokens: int) -> list[TokenDelta]:
    """A request's deltas.

    Args:
        request_id: id of the request.
        blocks: blocks of its prompt's log-probabilities; None if it did not ask for them.
        tokens: number of its deltas with a token; the end is a further one.
    """
    deltas = [TokenDelta(request_id, [at]) for at in range(tokens)]
    deltas.append(TokenDelta(request_id, [], "stop"))
    if blocks is not None:
        deltas[0] = msgspec.structs.replace(deltas[0], prompt_logprobs=of_a_prompt(blocks))
    return deltas


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=6),
    st.data(),
)
def test_each_request_gets_what_its_engine_sent(asked: list[tuple[int | None, int]], data: st.DataObject) -> None:
    sender, receiver = BlockSender(), BlockReceiver()
    answers = {at: answer(at, blocks, tokens) for at, (blocks, tokens) in enumerate(asked)}
    sender.expect([asking(at) for at, (blocks, _) in enumerate(asked) if blocks is not None])
    left = {at: list(deltas) for at, deltas in answers.items()}
    got: dict[int, list[TokenDelta]] = {at: [] for at in answers}

    def take(frame: ServerFrame) -> None:
        assert sum(len(delta.prompt_logprobs.blocks) for delta in frame.deltas if delta.prompt_logprobs) <= len(
            frame.deltas
        )
        for delta in receiver.deltas(frame):
            got[delta.request_id].append(delta)

    while left or sender.waiting:
        if left and (not sender.waiting or data.draw(st.booleans())):
            step = data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1, unique=True))
            deltas = [left[at].pop(0) for at in step]
            left = {at: more for at, more in left.items() if more}
            passed = sender.passed(deltas)
            # Nothing else waits.
            held = {at for at, (blocks, _) in enumerate(asked) if blocks is not None and blocks > 1}
            assert [delta for delta in deltas if delta.request_id not in held] == [
                delta for delta in passed if delta.request_id not in held
            ]
            take(ServerFrame(deltas=passed))
        else:
            block, behind = sender.next()
            take(ServerFrame(block=block))
            take(ServerFrame(deltas=behind))
    assert got == answers
    # Nothing is kept of what has ended.
    assert sender.passed(found := [TokenDelta(0, [1])]) is found
    assert receiver.deltas(frame := ServerFrame(deltas=found)) is frame.deltas


@given(st.lists(st.integers(2, 9), min_size=2, max_size=5))
def test_a_request_waits_for_one_block_of_each_other(blocks: list[int]) -> None:
    sender = BlockSender()
    sender.expect([asking(at) for at in range(len(blocks))])
    sender.passed([answer(at, count, 1)[0] for at, count in enumerate(blocks)])
    sent, ended = 0, {}
    while sender.waiting:
        sent += 1
        for delta in sender.next()[1]:
            ended[delta.request_id] = sent
    for at, count in enumerate(blocks):
        assert ended[at] == sum(min(other - 1, count - 1 - (number > at)) for number, other in enumerate(blocks))


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 40])
async def test_prompts_come_whole_and_before_what_follows(blocks: int) -> None:
    async with running() as world:
        listener = Kept(world.client.new_request_id())
        other = world.submit()
        world.client.submit(asking(listener.request_id), listener)
        await until(lambda: len(world.engine.live) == 2)
        wanted = [
            TokenDelta(listener.request_id, [1], prompt_logprobs=of_a_prompt(blocks, BLOCK_BYTES), cached_tokens=3),
            TokenDelta(listener.request_id, [2]),
            TokenDelta(listener.request_id, [], "stop"),
        ]
        for delta in wanted:
            world.engine.step(delta, TokenDelta(other.request_id, [7]))
        await until(lambda: listener.reasons)
        assert listener.deltas == wanted
        await until(lambda: other.tokens == [7, 7, 7])


@pytest.mark.parametrize("blocks", [10, 30, 90])
def test_another_request_waits_for_a_few_blocks_at_most(blocks: int) -> None:
    with served() as (engine, _, address):
        peer = Peer(address)
        base = peer.receive().id_base
        peer.send(ClientFrame([asking(base + 1), GenerationRequest(base + 2, [1], 5)]))
        engine.wait_for(lambda: len(engine.live) == 2)
        engine.step(TokenDelta(base + 1, [1], prompt_logprobs=of_a_prompt(blocks, BLOCK_BYTES)))
        engine.step(TokenDelta(base + 2, [2]))
        messages: list[bytes] = []
        while not messages or len(frames_of(messages)[-1].deltas) == 0:
            messages.append(peer.message())
        assert frames_of(messages)[-1].deltas == [TokenDelta(base + 2, [2])]
        # What the socket holds, and the one under way.
        assert len(messages) <= 5
        while frames_of(messages[-1:])[0].deltas[:1] in ([], [TokenDelta(base + 2, [2])]):
            messages.append(peer.message())
        assert max(map(len, messages)) < BLOCK_BYTES + 100
        assert len(messages) == blocks + 1
        peer.socket.close()


async def test_blocks_of_a_lost_engine_are_not_of_the_next_ones_request() -> None:
    """Whose id may be the same."""
    async with running() as world:
        first = Kept(world.client.new_request_id())
        world.client.submit(asking(first.request_id), first)
        await until(lambda: world.engine.live)
        connection = next(iter(world.server._connections.values()))
        connection.tell(ServerFrame(block=PromptBlock(first.request_id, b"of the first")))
        await world.hang_up()
        await until(lambda: first.reasons)
        world.load()
        await until(lambda: len(world.infos) == 2)
        second = Kept(world.client.new_request_id())
        assert second.request_id == first.request_id
        world.client.submit(asking(second.request_id), second)
        await until(lambda: world.engine.live)
        wanted = TokenDelta(second.request_id, [], "stop", prompt_logprobs=of_a_prompt(3))
        world.engine.step(wanted)
        await until(lambda: second.reasons)
        assert second.deltas == [wanted]


def frames_of(messages: Sequence[bytes]) -> list[ServerFrame]:
    return [msgspec.msgpack.decode(message, type=ServerFrame) for message in messages]


class Kept(Listener):
    """A listener that keeps the deltas themselves."""

    def __init__(self, request_id: int) -> None:
        super().__init__(request_id)
        self.deltas: list[TokenDelta] = []

    def __call__(self, delta: TokenDelta) -> None:
        super().__call__(delta)
        self.deltas.append(delta)
