from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, OverloadedError, TooLargeError
from openai_bls.core.machine import memory
from openai_bls.transport.ipc import frames, listener, prompt_server, prompts
from openai_bls.transport.ipc.frames import LENGTH, pack
from openai_bls.transport.ipc.prompt_server import PromptExchangeServer
from openai_bls.transport.ipc.prompts import (
    PromptAnswer,
    PromptCall,
    PromptExchangeClient,
    SlowPromptError,
    encode_request,
)
from openai_bls.transport.ipc.sockets import connect, new_socket
from tests.unit.core_support import WAIT_S, exchange_address, until


class World:
    """A preprocessing that counts characters, and a client."""

    def __init__(self) -> None:
        self.address = exchange_address()
        self.held = threading.Event()
        self.held.set()
        self.started = threading.Semaphore(0)
        self.prepared: list[str] = []
        self.here: set[str] = set()
        """Threads that have met a slow one."""
        self.running = self.most = 0
        """Long ones."""
        self.load()
        self.client = PromptExchangeClient(self.address)

    def load(self) -> None:
        self.server = PromptExchangeServer(self.address, self._prepare, 2, self._prepare_slowly)
        self.server.start()

    def _prepare(self, request: PromptRequest) -> PromptResult:
        (text, *_) = request.prompts or ["chat"]
        if text == "fails":
            raise RuntimeError("secret")
        if text == "refused":
            return PromptResult(error="no", param="prompt")
        if text.startswith("slow"):
            self.here.add(threading.current_thread().name)
            raise SlowPromptError
        self.prepared.append(text)
        long = len(text) >= 100_000
        self.running += long
        self.most = max(self.most, self.running)
        if text.startswith("held"):
            self.started.release()
            assert self.held.wait(WAIT_S)
        self.running -= long
        return PromptResult([[len(text)]])

    def _prepare_slowly(self, request: PromptRequest) -> PromptResult:
        (text,) = request.prompts or []
        self.started.release()
        assert self.held.wait(WAIT_S)
        return PromptResult([[len(text)]])

    @property
    def waiting(self) -> int:
        """Requests in lanes."""
        return sum(len(connection._waiting) for connection in self.server._connections)

    async def ask(self, text: str, key: str = "") -> PromptResult:
        return await self.client.prepare(PromptRequest(prompts=[text], key=key))

    async def hang_up(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.server.close)

    async def wait_started(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, lambda: self.started.acquire(timeout=WAIT_S))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.held.set()
    await made.client.close()
    await made.hang_up()


async def test_every_call_gets_its_own_answer(world: World) -> None:
    texts = ["x" * size for size in (1, 5, 30_000, 2, 100_000, 3)] * 20
    results = await asyncio.gather(*map(world.ask, texts))
    assert [result.prompt_token_ids for result in results] == [[[len(text)]] for text in texts]
    refused = await world.ask("refused")
    assert (refused.error, refused.param) == ("no", "prompt")


async def test_any_number_of_long_prompts_holds_no_short_ones_up(world: World) -> None:
    world.held.clear()
    long = [asyncio.ensure_future(world.ask("held" + "x" * size)) for size in [20_000] * 5 + [100_000] * 5]
    await world.wait_started()
    # Together, and alone.
    assert len(await asyncio.gather(*(world.ask("short") for _ in range(50)))) == 50
    assert (await world.ask("short")).prompt_token_ids == [[5]]
    assert not any(call.done() for call in long)
    world.held.set()
    await asyncio.gather(*long)


async def test_long_prompts_are_prepared_one_at_a_time(world: World) -> None:
    other = PromptExchangeClient(world.address)
    world.held.clear()
    calls = [world.ask(f"held{at}" + "x" * 100_000) for at in range(3)]
    calls += [other.prepare(PromptRequest(prompts=["held" + "x" * 100_000])) for _ in range(3)]
    long = [asyncio.ensure_future(call) for call in calls]
    await world.wait_started()
    await world.ask("short")
    assert not world.started.acquire(blocking=False)
    world.held.set()
    await asyncio.gather(*long)
    assert world.most == 1
    await other.close()


async def test_long_prompts_take_turns_by_key(world: World) -> None:
    """Those of one client, and those that meet in preprocessing."""
    other = PromptExchangeClient(world.address)
    world.held.clear()
    calls = [asyncio.ensure_future(world.ask("held" + "x" * 100_000, "alice"))]
    await world.wait_started()
    calls += [asyncio.ensure_future(world.ask(f"{at}" + "x" * 100_000, "alice")) for at in range(5)]
    calls += [asyncio.ensure_future(other.prepare(PromptRequest(prompts=["there" + "x" * 100_000], key="bob")))]
    await until(lambda: world.waiting == 2)
    calls += [asyncio.ensure_future(world.ask("here" + "x" * 100_000, "bob"))]
    await asyncio.sleep(0)
    world.held.set()
    await asyncio.gather(*calls)
    order = [text[:4] for text in world.prepared if len(text) >= 100_000]
    assert order == ["held", "ther", "here", "0xxx", "1xxx", "2xxx", "3xxx", "4xxx"]
    await other.close()


async def test_a_long_prompt_that_nobody_waits_for_is_not_prepared(world: World) -> None:
    """Whether it waits here, behind one of the same client, or in preprocessing, behind another client's."""
    other = PromptExchangeClient(world.address)
    world.held.clear()
    first = asyncio.ensure_future(world.ask("held" + "x" * 100_000))
    await world.wait_started()
    given_up = [
        asyncio.ensure_future(world.ask("here" + "x" * 100_000)),
        asyncio.ensure_future(other.prepare(PromptRequest(prompts=["there" + "x" * 100_000]))),
    ]
    await until(lambda: world.waiting == 2)
    for call in given_up:
        call.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    await until(lambda: world.waiting == 1)
    world.held.set()
    await first
    assert (await world.ask("last" + "x" * 100_000)).prompt_token_ids == [[100_004]]
    assert not {"here", "ther"} & {text[:4] for text in world.prepared}
    await other.close()


async def test_long_prompts_of_a_lost_client_are_not_prepared(world: World) -> None:
    other = PromptExchangeClient(world.address)
    world.held.clear()
    first = asyncio.ensure_future(world.ask("held" + "x" * 100_000))
    await world.wait_started()
    gone = asyncio.ensure_future(other.prepare(PromptRequest(prompts=["gone" + "x" * 100_000])))
    await until(lambda: world.waiting == 2)
    await other.close()
    await asyncio.gather(gone, return_exceptions=True)
    await until(lambda: world.waiting == 1)
    world.held.set()
    await first
    assert "gone" not in {text[:4] for text in world.prepared}


async def test_memory_is_given_back_after_a_long_prompt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(memory, "trim", lambda: trims.append(1))
    await world.ask("x" * 50_000)
    assert trims == []
    await world.ask("x" * 100_000)
    await world.ask("x" * 100_000)
    assert trims


async def test_a_failure_is_the_calls_own(world: World) -> None:
    with pytest.raises(EngineError) as caught:
        await world.ask("fails")
    assert "secret" not in caught.value.message
    with pytest.raises(InvalidRequestError):
        await world.client.prepare(PromptRequest(messages=[{"content": 10**30}]))
    with pytest.raises(InvalidRequestError):
        await world.ask("\ud800")
    assert (await world.ask("abc")).prompt_token_ids == [[3]]


async def test_a_lost_preprocessing_is_told_and_found_again(world: World) -> None:
    world.held.clear()
    call = asyncio.ensure_future(world.ask("held" + "x" * 50_000))
    await world.wait_started()
    gone = asyncio.ensure_future(world.hang_up())
    with pytest.raises(OverloadedError):
        await call
    waiting = asyncio.ensure_future(world.ask("abcd"))
    world.held.set()
    await gone
    world.load()
    assert (await waiting).prompt_token_ids == [[4]]


async def test_long_prompts_wait_together_for_a_preprocessing_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    client = PromptExchangeClient(exchange_address())
    waits: list[float] = []

    async def wait_for(coming: Any, timeout: float) -> None:
        waits.append(timeout)
        coming.close()
        await until(lambda: len(waits) == 3)
        raise asyncio.TimeoutError

    monkeypatch.setattr("openai_bls.transport.ipc.link.asyncio.wait_for", wait_for)
    long = [client.prepare(PromptRequest(prompts=["x" * 100_000])) for _ in range(3)]
    failures = await asyncio.gather(*long, return_exceptions=True)
    assert [type(failure) for failure in failures] == [OverloadedError] * 3
    await client.close()


async def test_a_client_that_reads_nothing_does_not_hold_the_unload_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_server, "_GRACE_S", 0.01)
    address = exchange_address()
    # More than the buffers of a socket hold.
    server = PromptExchangeServer(address, lambda request: PromptResult([[1 << 30] * 1_000_000]), threads=1)
    server.start()
    client = PromptExchangeClient(address)
    await client._link.ready()
    silent = new_socket()
    silent.connect(address)
    silent.sendall(pack(msgspec.msgpack.encode(PromptCall(1, encode_request(PromptRequest(prompts=["a"]))))))
    await until(lambda: any(connection._sending.locked() for connection in server._connections))
    await asyncio.get_running_loop().run_in_executor(None, server.close)
    silent.close()
    await client.close()


async def test_closing_tells_whoever_waits(world: World) -> None:
    world.held.clear()
    call = asyncio.ensure_future(world.ask("held"))
    await world.wait_started()
    await world.client.close()
    with pytest.raises(ApiError) as caught:
        await call
    assert caught.value.status == 503


def received(peer: socket.socket) -> PromptAnswer:
    stream = peer.makefile("rb")
    (length,) = LENGTH.unpack(stream.read(LENGTH.size))
    return msgspec.msgpack.decode(stream.read(length), type=PromptAnswer)


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode({"other": 1})])
def test_a_request_that_cannot_be_read_fails_alone(payload: bytes) -> None:
    address = exchange_address()
    server = PromptExchangeServer(address, lambda request: PromptResult([[1]]), threads=1)
    server.start()
    peer = new_socket()
    peer.settimeout(WAIT_S)
    for _ in range(1000):
        try:
            peer.connect(address)
            break
        except OSError:
            threading.Event().wait(0.005)
    assert received(peer).call_id == 0
    good = msgspec.msgpack.encode(PromptRequest(prompts=["a"]))
    for call in (PromptCall(1, payload), PromptCall(2, good)):
        peer.sendall(pack(msgspec.msgpack.encode(call)))
        answer: Any = received(peer)
        assert (answer.call_id, answer.failed) == (call.call_id, call.call_id == 1)
    peer.sendall(b"\x01\0\0\0\xc1")
    # Nonsense between the frames ends the connection, and only that.
    assert peer.recv(1) == b""
    peer.close()
    server.close()


@pytest.mark.anyio
async def test_slow_prompts_hold_no_other_up(world: World) -> None:
    """Nor the answer to a ping: once there was one, the thread that reads prepares nothing itself."""
    world.held.clear()
    async with asyncio.timeout(WAIT_S):
        running = [asyncio.create_task(world.ask("slow")) for _ in range(2)]
        for _ in range(2):
            await world.wait_started()
        waiting = [asyncio.create_task(world.ask("slow")) for _ in range(9)]
        refused = (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[0]
        assert [type(one.exception()) for one in refused] == [OverloadedError]
        assert await world.ask("quick") == PromptResult([[5]])
        assert await world.client.check(WAIT_S) == "up"
        # Another key's is taken, and comes first.
        other = asyncio.create_task(world.ask("slow, too", "bob"))
        await until(lambda: len(world.server._connections[0]._slow) == 11)
        left = [one for one in waiting if one not in refused]
        left.pop().cancel()
        world.held.set()
        assert await other == PromptResult([[9]])
        assert len(await asyncio.gather(*running, *left)) == 9
    assert not any(connection._slow for connection in world.server._connections)
    world.here.clear()
    await world.ask("slow")
    assert not any(name.startswith("prompt-read") for name in world.here)


async def test_prompts_that_do_not_fit_into_a_frame(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In either direction; the others go on."""
    await world.ask("x")
    monkeypatch.setattr(prompts, "_MOST_BYTES", 2000)
    with pytest.raises(TooLargeError):
        await world.ask("x" * 3000)
    monkeypatch.setattr(world.server, "_prepare", lambda request: PromptResult([[1 << 30] * 100]))
    for connection in world.server._connections:
        monkeypatch.setattr(connection, "_prepare", lambda request: PromptResult([[1 << 30] * 100]))
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 200)
    assert (await world.ask("x")).error is not None


@pytest.mark.parametrize("greets", [False, True])
async def test_clients_of_preprocessing_greet_and_have_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch, greets: bool
) -> None:
    await world.ask("x")
    if greets:
        monkeypatch.setattr(prompt_server, "MOST_CONNECTIONS", 1)
    else:
        monkeypatch.setattr(listener, "GREETING_S", 0.01)

    def hung_up() -> bool:
        with connect(world.address) as other:
            other.setblocking(True)
            other.settimeout(WAIT_S)
            if greets:
                with contextlib.suppress(OSError):
                    other.sendall(pack(b""))
            try:
                while other.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        return True

    assert await asyncio.to_thread(hung_up)
    await world.ask("x")
