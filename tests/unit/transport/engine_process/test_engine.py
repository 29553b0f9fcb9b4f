"""The engine in Triton's stub, over a process that a test loses at will."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from openai_bls.core.engine import LoraError, PrefixCacheError
from openai_bls.core.engine_types import EngineInfo, PromptLogprobs, TokenDelta
from openai_bls.core.logprobs import BLOCK_BYTES
from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.ipc import link
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.server import ExchangeServer
from tests.unit.core_support import WAIT_S, FakeEngine, engine_info, exchange_address
from tests.unit.transport.engine_process.local_source import LocalSource, Taken, request
from tests.waiting import until


class World:
    """An engine over a source, and what its listener was told."""

    def __init__(self, source: LocalSource) -> None:
        self.source = source
        self.taken = Taken()
        self.engine = ProcessEngine(source, self.taken, 60)

    def lose(self) -> None:
        """Lose the process, and wait until it is back."""
        restarts = self.engine.stats().restarts
        self.source.lose()
        until(lambda: self.engine.stats().restarts == restarts + 1)

    def until_failed(self) -> None:
        """Until the process is given up."""
        until(lambda: self.engine.stats().failed)


@pytest.fixture
def source() -> LocalSource:
    return LocalSource()


@pytest.fixture
def world(source: LocalSource) -> Iterator[World]:
    made = World(source)
    yield made
    made.engine.close()


def submitted(world: World, request_id: int) -> int:
    """Id of a new request in the process's engine."""
    known = len(world.source.engine.submitted)
    world.engine.submit(request(request_id))
    world.source.engine.wait_for(lambda: len(world.source.engine.submitted) > known)
    return world.source.engine.submitted[-1].request_id


def answered(world: World, request_id: int) -> TokenDelta:
    """End of a request that the process's engine answers."""
    inner = submitted(world, request_id)
    world.source.engine.step(TokenDelta(inner, [7], "length"))
    return world.taken.wait_end(request_id)


def test_requests_go_there_and_back(world: World) -> None:
    assert world.engine.info == engine_info()
    assert answered(world, 1) == TokenDelta(1, [7], "length")
    inner = submitted(world, 2)
    assert world.engine.stats().running == 1
    world.engine.cancel(2)
    assert world.taken.wait_end(2).finish_reason == "cancelled"
    assert world.source.engine.cancelled == [inner]


@pytest.mark.parametrize("blocks", [1, 2, 20])
def test_log_probabilities_of_a_prompt_are_in_the_first_delta(world: World, blocks: int) -> None:
    found = PromptLogprobs(1, [os.urandom(BLOCK_BYTES) for _ in range(blocks)])
    world.engine.submit(msgspec.structs.replace(request(1), prompt_logprobs=1))
    engine = world.source.engine
    engine.wait_for(lambda: engine.submitted)
    inner = engine.submitted[-1].request_id
    engine.step(TokenDelta(inner, [7], prompt_logprobs=found))
    engine.step(TokenDelta(inner, [8], "length"))
    world.taken.wait_end(1)
    assert world.taken.deltas == [TokenDelta(1, [7], prompt_logprobs=found), TokenDelta(1, [8], "length")]


def test_a_lost_process_ends_its_requests_and_comes_back(world: World) -> None:
    submitted(world, 1)
    world.lose()
    end = world.taken.wait_end(1)
    assert (end.finish_reason, end.invalid) == ("error", False)
    assert answered(world, 2).finish_reason == "length"
    assert not world.engine.stats().failed


def test_requests_while_it_is_away(source: LocalSource) -> None:
    source.limit = None
    world = World(source)
    source.refusal = "no GPU"
    source.lose()
    source.wait(lambda: source.attempts > 3)
    world.engine.submit(request(1))
    assert world.taken.ends()[1].finish_reason == "error"
    world.engine.cancel(1)
    with pytest.raises(LoraError, match="engine's process"):
        world.engine.load_lora("a", "/a")
    with pytest.raises(PrefixCacheError, match="engine's process"):
        world.engine.reset_prefix_cache()
    assert not world.engine.stats().failed
    world.engine.close()
    world.engine.submit(request(2))
    assert world.taken.ends()[2].finish_reason == "cancelled"


def test_it_is_given_up_after_too_many_failures(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.source.refusal = "no GPU"
    world.source.lose()
    world.source.wait(lambda: world.source.attempts == 1 + 3)
    world.until_failed()
    assert "no GPU; it is not started any more" in caplog.text
    world.engine.submit(request(1))
    assert world.taken.ends()[1].finish_reason == "error"


def test_adapters_are_loaded_again(world: World) -> None:
    """Whoever has loaded them, and not those that were unloaded."""
    world.engine.load_lora("first", "/adapters/first")
    world.engine.load_lora("second", "/adapters/second")
    world.engine.unload_lora("first")
    with pytest.raises(LoraError, match="the adapter is bad"):
        world.engine.load_lora("third", "bad")
    assert world.engine.info.lora_names == ("second",)
    world.lose()
    assert answered(world, 1).finish_reason == "length"
    assert world.source.engine.info.lora_names == ("second",)
    assert world.engine.info.lora_names == ("second",)


def test_an_adapter_of_the_build_that_was_unloaded_stays_so() -> None:
    world = World(LocalSource(engine_info(lora_names=("built",))))
    world.engine.unload_lora("built")
    world.lose()
    answered(world, 1)
    assert world.engine.info.lora_names == ()
    world.engine.close()


def test_an_adapter_that_does_not_load_again_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.load_lora("a", "/adapters/a")
    known = FakeEngine.load_lora
    monkeypatch.setattr(FakeEngine, "load_lora", lambda engine, name, path: known(engine, name, "bad"))
    world.lose()
    answered(world, 1)
    assert "the adapter a is not loaded again: the adapter is bad" in caplog.text
    assert world.engine.info.lora_names == ()


def test_the_prefix_cache(world: World) -> None:
    world.engine.reset_prefix_cache()
    assert world.source.engine.prefix_resets == 1
    world.source.engine.prefix_refusal = PrefixCacheError("it is in use", busy=True)
    with pytest.raises(PrefixCacheError, match="it is in use") as refusal:
        world.engine.reset_prefix_cache()
    assert refusal.value.busy


def test_another_engine_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    world = World(LocalSource(engine_info(), engine_info(max_model_len=7)))
    world.source.lose()
    world.until_failed()
    assert "has come back with another engine: load the model again" in caplog.text
    assert world.engine.info == engine_info()
    world.engine.close()


def test_the_first_start_fails_with_its_sentence(source: LocalSource) -> None:
    source.refusal = "no GPU"
    with pytest.raises(EngineLoadError, match=r"^no GPU$"):
        World(source)


def test_closing_ends_requests_once(world: World) -> None:
    submitted(world, 1)
    world.engine.close()
    assert world.taken.wait_end(1).finish_reason == "cancelled"
    world.engine.close()
    assert len(world.taken.deltas) == 1


class Instance:
    """An `openai_bls` instance that connects to the stub's address, and the engines that it has been told of."""

    def __init__(self, world: World) -> None:
        address = exchange_address()
        self.world = world
        self.exchange = ExchangeServer(address)
        self.exchange.start(world.engine, world.engine.adopt)
        self.infos: list[EngineInfo] = []
        self.client = ExchangeClient(address, self.infos.append)

    async def until_connected(self, times: int) -> None:
        while len(self.infos) < times or not self.client.connected:
            await asyncio.sleep(0.001)

    async def until(self, state: link.PartState) -> None:
        while await self.client.check(WAIT_S) != state:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.client.close()
        await asyncio.to_thread(self.exchange.close)


async def test_connections_are_handed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_RETRY_S", 0.005)
    instance = Instance(world)
    async with asyncio.timeout(WAIT_S):
        await instance.until_connected(1)
        # It is the process that answers.
        heard: list[TokenDelta] = []
        asked = request(instance.client.new_request_id())
        instance.client.submit(asked, heard.append)
        while not world.source.engine.live:
            await asyncio.sleep(0.001)
        world.source.engine.step(TokenDelta(asked.request_id, [3]))
        while not heard:
            await asyncio.sleep(0.001)
        # Adapters of the stub's own door are news to instances.
        await asyncio.to_thread(instance.exchange.update_lora, "a", "/adapters/a")
        while instance.infos[-1].lora_names != ("a",):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(world.lose)
        while not heard[-1].finish_reason:
            await asyncio.sleep(0.001)
        await instance.until_connected(3)
        assert instance.infos[-1].lora_names == ("a",)
        assert await instance.client.check(WAIT_S) == "up"
        await asyncio.to_thread(world.engine.close)
        await instance.until("absent")
    await instance.close()


async def test_what_instances_are_told_meanwhile(source: LocalSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_RETRY_S", 0.005)
    world = World(source)
    instance = Instance(world)
    async with asyncio.timeout(WAIT_S):
        await instance.until_connected(1)
        source.may_open.clear()
        source.lose()
        await instance.until("restarting")
        source.may_open.set()
        await instance.until("up")
        source.refusal = "no GPU"
        source.lose()
        await instance.until("failed")
    # An orderly end: nothing was lost.
    await asyncio.to_thread(world.engine.close)
    async with asyncio.timeout(WAIT_S):
        while await instance.client.check(WAIT_S) == "failed":
            await asyncio.sleep(0.001)
    await instance.close()


def test_a_connection_that_comes_too_late_is_closed(world: World) -> None:
    world.engine.close()
    ours, theirs = socket.socketpair()
    world.engine.adopt(theirs)
    assert ours.recv(1) == b""
    ours.close()
