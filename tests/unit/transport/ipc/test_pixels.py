"""Requests with images on the exchange: what travels, in which pieces, and what the engine gets."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.transport.ipc import connection as connection_module
from openai_bls.transport.ipc import pixel_sender, pixels, sockets
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.frames import (
    MOST_PIXEL_BYTES,
    PIECE_BYTES,
    PING,
    ClientFrame,
    FrameError,
    Frames,
    PixelPiece,
    ServerFrame,
    SharedMedia,
    pack,
)
from openai_bls.transport.ipc.pixels import PixelReceiver
from tests.unit.core_support import engine_info, exchange_address, until
from tests.unit.transport.ipc.test_exchange import Listener, running

ID_BASE = 1 << 32


def image(side: int, uuid: str) -> Image:
    return Image(side, side, os.urandom(3 * side * side), uuid)


def prompt(*images: Image) -> MediaPrompt:
    return MediaPrompt(images, "text", (5, 6), len(images))


LARGE, SMALL = image(600, "large"), image(2, "small")


def submit(client: ExchangeClient, media: MediaPrompt | None) -> Listener:
    listener = Listener(client.new_request_id())
    client.submit(GenerationRequest(listener.request_id, [1], 5, media=media), listener)
    return listener


class ByHand:
    """The engine's end by hand, which reads only when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._frames = Frames()
        self.writer = writer
        self.messages: list[bytes] = []

    @property
    def frames(self) -> list[ClientFrame]:
        return [msgspec.msgpack.decode(message, type=ClientFrame) for message in self.messages]

    async def read(self, enough: Callable[[ClientFrame], object]) -> None:
        """Read up to a frame."""
        while not any(map(enough, self.frames)):
            data = await self._reader.read(4096)
            assert data
            # The first is a greeting.
            self.messages += [message for message in self._frames.feed(data) if message != PING]


@asynccontextmanager
async def by_hand() -> AsyncIterator[tuple[ExchangeClient, ByHand]]:
    came: asyncio.Queue[ByHand] = asyncio.Queue()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.put_nowait(ByHand(reader, writer))

    address, connected = exchange_address(), asyncio.Event()
    server = await asyncio.start_unix_server(accept, address)
    client = ExchangeClient(address, lambda _: connected.set())
    engine = await came.get()
    engine.writer.write(pack(msgspec.msgpack.encode(ServerFrame(info=engine_info(), id_base=ID_BASE))))
    await connected.wait()
    yield client, engine
    await client.close()
    engine.writer.close()
    server.close()
    sockets.unlink(address)


async def test_pixels_travel_once_for_all_choices_and_in_pieces() -> None:
    media = prompt(LARGE, SMALL, LARGE)
    async with by_hand() as (client, engine):
        ids = [submit(client, media).request_id for _ in range(5)]
        await engine.read(lambda frame: frame.submissions)
        pieces = [piece for frame in engine.frames for piece in frame.pixels]
        assert sum(len(piece.data) for piece in pieces) == len(LARGE.pixels) + len(SMALL.pixels)
        assert max(map(len, engine.messages)) < PIECE_BYTES + 4096
        assert [request.request_id for request in engine.frames[-1].submissions] == ids


async def test_the_engine_gets_whole_images_that_its_requests_share() -> None:
    media = prompt(LARGE, SMALL, LARGE)
    async with running() as world:
        ids = [submit(world.client, media).request_id for _ in range(3)]
        other = submit(world.client, prompt(SMALL)).request_id
        await until(lambda: len(world.engine.live) == 4)
        first, *others = (world.engine.live[request_id].media for request_id in ids)
        assert first == media
        assert all(one is first for one in others)
        assert first.images[0].pixels is first.images[2].pixels
        assert world.engine.live[other].media == prompt(SMALL)


async def test_requests_without_images_do_not_wait_for_those_with_some() -> None:
    async with by_hand() as (client, engine):
        slow = submit(client, prompt(LARGE)).request_id
        await engine.read(lambda frame: frame.pixels)
        quick = submit(client, None).request_id
        await engine.read(lambda frame: slow in [request.request_id for request in frame.submissions])
        assert [request.request_id for frame in engine.frames for request in frame.submissions] == [quick, slow]


async def test_what_is_cancelled_on_its_way_never_arrives() -> None:
    async with by_hand() as (client, engine):
        media = prompt(LARGE)
        gone, kept = submit(client, media).request_id, submit(client, media).request_id
        also_gone = submit(client, prompt(LARGE)).request_id
        await engine.read(lambda frame: frame.pixels)
        client.cancel(gone)
        client.cancel(also_gone)
        last = submit(client, prompt(SMALL)).request_id
        await engine.read(lambda frame: last in [request.request_id for request in frame.submissions])
        assert [request.request_id for frame in engine.frames for request in frame.submissions] == [kept, last]
        assert not any(frame.cancels for frame in engine.frames)


async def test_pieces_of_a_request_that_is_cancelled_are_dropped() -> None:
    async with by_hand() as (client, engine):
        gone = submit(client, prompt(LARGE)).request_id
        await engine.read(lambda frame: frame.pixels)
        client.cancel(gone)
        await engine.read(lambda frame: frame.dropped)
        assert engine.frames[-1].dropped == [engine.frames[0].pixels[0].number]


async def test_a_connection_that_is_lost_meanwhile_ends_the_request_and_not_the_next() -> None:
    async with running() as world:
        listener = submit(world.client, prompt(LARGE))
        await world.hang_up()
        await until(lambda: listener.reasons == ["cancelled"])
        world.load()
        await until(lambda: world.client.connected)
        again = submit(world.client, prompt(LARGE))
        await until(lambda: again.request_id in world.engine.live)
        assert world.engine.live[again.request_id].media == prompt(LARGE)
        world.engine.step(TokenDelta(again.request_id, [7], "stop"))
        await until(lambda: again.reasons == ["stop"])


class PixelMachine(RuleBasedStateMachine):
    """Frames with pixels in any order: images are whole or not there, and room is that of what is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.receiver = PixelReceiver()
        self.sent: dict[int, bytes] = {}

    @rule(number=st.integers(0, 3), data=st.binary(max_size=9))
    def piece(self, number: int, data: bytes) -> None:
        self.sent[number] = self.sent.get(number, b"") + data
        assert self.receiver.submissions(ClientFrame(pixels=[PixelPiece(number, data)])) == ([], [])

    @rule(number=st.integers(0, 3))
    def drop(self, number: int) -> None:
        self.sent.pop(number, None)
        self.receiver.submissions(ClientFrame(dropped=[number]))

    @rule()
    def forget(self) -> None:
        self.sent.clear()
        self.receiver.forget()

    @rule(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=3), side=st.integers(0, 2))
    def name(self, numbers: list[int], side: int) -> None:
        bare = tuple(Image(side, side, b"", str(number)) for number in numbers)
        shared = SharedMedia(MediaPrompt(bare, "", (), 0), numbers, [7])
        frame = ClientFrame(submissions=[GenerationRequest(7, [1], 1), GenerationRequest(8, [1], 1)], media=[shared])
        requests, gone = self.receiver.submissions(frame)
        held = [self.sent.pop(number, None) for number in dict.fromkeys(numbers)]
        if all(data is not None and len(data) == 3 * side * side for data in held):
            assert [request.request_id for request in requests] == [7, 8]
            assert requests[0].media is not None
            assert requests[0].media.images[0].pixels == held[0]
            assert requests[1].media is None
            assert gone == []
        else:
            assert [request.request_id for request in requests] == [8]
            assert gone == [7]

    @invariant()
    def room_is_that_of_what_is_kept(self) -> None:
        kept = sum(map(len, self.sent.values()))
        assert kept <= self.receiver.held_bytes
        assert (self.receiver.held_bytes == 0) == (not self.sent)


TestPixels = PixelMachine.TestCase
TestPixels.settings = settings(max_examples=30, stateful_step_count=20)


@pytest.mark.parametrize("data", [b"", b"x", bytes(PIECE_BYTES)])
def test_pixels_that_no_request_names_have_a_bound(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """By what they take, and not by their bytes alone."""
    monkeypatch.setattr(pixels, "_MOST_HELD_BYTES", 10 * PIECE_BYTES)
    receiver, sent = PixelReceiver(), 0
    with contextlib.suppress(FrameError):
        while sent * max(len(data), 128) <= 10 * PIECE_BYTES:
            receiver.submissions(ClientFrame(pixels=[PixelPiece(sent, data)]))
            sent += 1
    assert sent * max(len(data), 128) <= 10 * PIECE_BYTES


def test_the_bound_leaves_room_for_the_largest_prompt() -> None:
    whole = MOST_PIXEL_BYTES // PIECE_BYTES
    assert MOST_PIXEL_BYTES + whole * pixels._PIECE_OVERHEAD_BYTES <= pixels._MOST_HELD_BYTES


async def test_pixels_that_no_request_names_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that names them after all has an error, and its neighbour on the connection none."""
    monkeypatch.setattr(connection_module, "PIXELS_WAIT_S", 0.01)
    async with running() as world:
        connection = next(iter(world.server._connections.values()))
        neighbour = submit(world.client, None)
        world.client._link.send(ClientFrame(pixels=[PixelPiece(77, b"abc")]))
        await until(lambda: neighbour.request_id in world.engine.live and not connection._images._pieces)
        late = Listener(world.client.new_request_id())
        world.client._listeners[late.request_id] = late
        shared = SharedMedia(MediaPrompt((Image(1, 1, b"", "x"),), "", (), 0), [77], [late.request_id])
        world.client._link.send(ClientFrame(submissions=[GenerationRequest(late.request_id, [1], 5)], media=[shared]))
        await until(lambda: late.reasons)
        assert late.reasons == ["error"]
        world.engine.step(TokenDelta(neighbour.request_id, [7], "stop"))
        await until(lambda: neighbour.reasons == ["stop"])


async def test_a_prompt_with_more_pixels_than_the_engine_keeps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_sender, "MOST_PIXEL_BYTES", len(LARGE.pixels) + 5)
    async with running() as world:
        refused = submit(world.client, prompt(LARGE, SMALL))
        # The same image twice travels once.
        taken = submit(world.client, prompt(LARGE, LARGE))
        await until(lambda: taken.request_id in world.engine.live and refused.reasons)
        assert refused.reasons == ["error"]
