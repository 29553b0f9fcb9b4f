from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.chat.chunks import ChunkEncoder, Envelope
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.core.usage import Usage
from openai_bls.triton_models.endpoint import response_sender
from openai_bls.triton_models.endpoint.response_sender import ResponseSender, SenderThreads, Throttle
from tests.unit.core_support import WAIT_S, FakeReply, until


class HeldReply(FakeReply):
    """A reply whose server takes a response only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.room = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)

    def send(self, body: bytes, *, final: bool = False) -> None:
        self.asked.release()
        assert self.room.acquire(timeout=WAIT_S)
        super().send(body, final=final)

    def free(self) -> None:
        for _ in range(10_000):
            self.room.release()


class World:
    def __init__(self, threads: int = 2) -> None:
        self.loop = asyncio.get_running_loop()
        self.senders = SenderThreads(threads, self.loop)

    def sender_for(self, reply: FakeReply, *, choices: int = 2) -> ResponseSender[bytes]:
        sender = self.senders.sender_for(reply)
        sender.begin(
            ChunkEncoder(
                Envelope(chat=True, id="i", created=1, model="m", fingerprint="f", choices=choices),
                usage_null=False,
                sse=sender.sse,
            )
        )
        return sender


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
        # A reply has its last response a moment before its sender is done with.
        await until(lambda: made.senders.open == 0)
    finally:
        await made.loop.run_in_executor(None, made.senders.close)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made


def texts(reply: FakeReply, choice: int) -> list[str]:
    return [
        c["delta"]["content"]
        for body in reply.bodies
        for c in body.get("choices", ())
        if c["index"] == choice and c["delta"].get("content")
    ]


async def test_text_that_waits_for_the_server_goes_out_as_one(world: World) -> None:
    reply = HeldReply()
    sender = world.sender_for(reply)
    sender.text(0, "a", None)
    await until(lambda: reply.asked.acquire(blocking=False))
    for piece in ("b", "c", "d"):
        sender.text(0, piece, Usage.of(1, ord(piece)))
        sender.text(1, piece.upper(), None)
    sender.write(b'{"choices":[],"note":1}')
    sender.text(0, "e", None)
    sender.end()
    reply.free()
    await until(lambda: reply.finals)
    assert texts(reply, 0) == ["a", "bcd", "e"]
    assert texts(reply, 1) == ["BCD"]
    # Nothing overtakes what is no text, and the joined piece has the newest usage.
    kinds = ["note" if "note" in body else body["choices"][0]["delta"]["content"] for body in reply.bodies]
    assert kinds == ["a", "bcd", "BCD", "note", "e"]
    assert reply.bodies[1]["usage"]["completion_tokens"] == ord("d")
    # The end came with the last response.
    assert (reply.finals, reply.error) == (1, None)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.text("abcé😀", min_size=1, max_size=3), st.booleans()), max_size=30),
    st.integers(0, 40),
)
@settings(deadline=None, max_examples=20)
def test_nothing_is_lost_or_reordered_however_slow_the_server_is(
    pieces: list[tuple[int, str, bool]], room: int
) -> None:
    async def main() -> None:
        async with running() as world:
            reply = HeldReply()
            for _ in range(room):
                reply.room.release()
            sender = world.sender_for(reply)
            for choice, text, pause in pieces:
                sender.text(choice, text, None)
                if pause:
                    await asyncio.sleep(0.001)
            sender.end()
            reply.free()
            await until(lambda: reply.finals)
            for choice in (0, 1):
                assert "".join(texts(reply, choice)) == "".join(t for c, t, _ in pieces if c == choice)
            assert reply.finals == 1

    asyncio.run(main())


async def test_an_error_before_and_after_output(world: World) -> None:
    first, later, last = FakeReply(), FakeReply(), FakeReply()
    error = ApiError("x", param="p", code="c")
    world.sender_for(first).fail(error)
    sender = world.sender_for(later)
    sender.write(b'{"choices":[]}')
    sender.fail(error)
    world.sender_for(last).answer(b'{"whole":1}')
    await until(lambda: first.finals and later.finals and last.finals)
    assert (first.error, first.bodies) == (error, [])
    assert (later.error, later.bodies) == (None, [{"choices": []}, error.body()])
    assert (last.bodies, last.finals, last.error) == ([{"whole": 1}], 1, None)


@pytest.mark.parametrize("after_output", [False, True])
async def test_errors_are_throttled_as_chunks_are(
    world: World, monkeypatch: pytest.MonkeyPatch, *, after_output: bool
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(Throttle, "wait", lambda throttle: waits.append(1))
    replies = [FakeReply() for _ in range(10)]
    for reply in replies:
        sender = world.sender_for(reply)
        if after_output:
            sender.write(b'{"choices":[]}')
        sender.fail(EngineError("lost"))
    await until(lambda: all(reply.finals for reply in replies))
    assert len(waits) == 10 * (1 + after_output)


async def test_what_comes_after_the_end_is_dropped(world: World) -> None:
    reply = FakeReply()
    sender = world.sender_for(reply)
    sender.end()
    sender.text(0, "late", None)
    sender.fail(EngineError("late"))
    await until(lambda: reply.finals)
    assert (reply.bodies, reply.error, reply.finals) == ([], None, 1)


async def test_a_client_that_goes_away_is_noticed_and_what_waits_is_dropped(world: World) -> None:
    cancelled: list[int] = []
    reply, other = FakeReply(), FakeReply()
    sender = world.sender_for(reply)
    sender.when_cancelled(lambda: cancelled.append(1))
    kept = world.sender_for(other)
    kept.when_cancelled(lambda: cancelled.append(2))
    sender.text(0, "a", None)
    reply.cancelled = True
    await until(lambda: reply.finals)
    assert cancelled == [1]
    kept.end()
    await until(lambda: other.finals)


@pytest.mark.parametrize("where", ["send", "is_cancelled", "final"])
async def test_a_reply_that_raises_still_ends_and_disturbs_no_other(world: World, where: str) -> None:
    class Broken(FakeReply):
        def send(self, body: bytes, *, final: bool = False) -> None:
            if where == "send" or (where == "final" and final):
                raise RuntimeError("shared memory is full")
            super().send(body, final=final)

        def is_cancelled(self) -> bool:
            if where == "is_cancelled":
                raise RuntimeError("gone")
            return super().is_cancelled()

    broken, other = Broken(), FakeReply()
    # Two senders: the third request shares the first one's.
    first, second, third = world.sender_for(broken), world.sender_for(FakeReply()), world.sender_for(other)
    first.text(0, "a", None)
    await until(lambda: broken.finals or broken.bodies)
    third.text(0, "b", None)
    for sender in (first, second, third):
        sender.end()
    await until(lambda: broken.finals and other.finals)
    assert texts(other, 0) == ["b"]


async def test_requests_are_spread_over_the_senders(world: World) -> None:
    held, other = HeldReply(), FakeReply()
    slow, quick = world.sender_for(held), world.sender_for(other)
    slow.text(0, "a", None)
    quick.text(0, "b", None)
    quick.end()
    # Although the server does not take the other's.
    await until(lambda: other.finals)
    held.free()
    slow.end()
    await until(lambda: held.finals)


async def test_closing_sends_what_is_pending() -> None:
    world = World()
    replies = [FakeReply() for _ in range(5)]
    for reply in replies:
        sender = world.sender_for(reply)
        sender.text(0, "a", None)
        sender.end()
    await world.loop.run_in_executor(None, world.senders.close)
    for reply in replies:
        assert (texts(reply, 0), reply.finals) == (["a"], 1)


@given(st.lists(st.floats(0, 0.03), min_size=1, max_size=60))
@settings(deadline=None)
def test_the_throttle_allows_so_many_in_any_span(gaps: list[float]) -> None:
    """On a clock of the test's own."""
    now = 50.0
    sent: list[float] = []

    class Clock:
        monotonic = staticmethod(lambda: now)

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(response_sender, "time", Clock)
        throttle = Throttle(5, 0.025)
        for gap in itertools.chain(gaps, [0.0] * 20):
            now += gap
            throttle.wait()
            sent.append(now)
    for first, sixth in zip(sent, sent[5:], strict=False):
        assert sixth - first >= 0.025 - 1e-9
    # And makes nobody wait who comes slowly.
    assert sent[0] == 50.0 + gaps[0]
