"""The engine over a client that does what the test says; engines/vllm/tests_vllm/installed has it over vLLM."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from openai_bls.core.engine import LoraError, PrefixCacheError
from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_vllm.engine import Opened, VllmEngine
from openai_bls_vllm.grammars.grammars import Grammars
from tests.engine_contract.support import Recorder
from tests.unit.output.structured.driving import DEMO, demo
from tests_transformers.engine.adapters import make_adapter
from tests_vllm.engine.vllm_support import INFO, CoreOutput, ScriptedClient, Stats, asked

Started = tuple[VllmEngine, Recorder, ScriptedClient]


@pytest.fixture
def started(checkpoint: Path) -> Iterator[Started]:
    clients: list[ScriptedClient] = []

    def open_client() -> Opened:
        clients.append(ScriptedClient())
        return Opened(clients[0], INFO)

    recorder = Recorder()
    engine = VllmEngine(open_client, recorder, checkpoint=checkpoint)
    yield engine, recorder, clients[0]
    engine.close()
    assert recorder.breaches == []
    assert clients[0].shut_down
    assert recorder.threads <= {clients[0].thread, threading.get_ident()}


def test_one_call_of_the_listener_for_a_step(started: Started) -> None:
    engine, recorder, client = started
    for number in (1, 2, 3):
        engine.submit(asked(request_id=number))
    keys = [one.request_id for one in client.wait_started(3)]
    assert len(set(keys)) == 3
    client.step(*(CoreOutput(key, [4]) for key in keys), stats=Stats(1, 0.25))
    recorder.wait_tokens(3)
    assert len(recorder.steps) == 1
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (2, 1, 0.25)
    assert (stats.steps, stats.generated_tokens) == (1, 3)
    client.step(*(CoreOutput(key, [5], finish_reason="length") for key in keys))
    recorder.wait_end(1, 2, 3)
    assert engine.stats().generated_tokens == 6


def test_a_cancelled_id_is_free_for_a_request_that_shares_nothing_with_the_last(started: Started) -> None:
    engine, recorder, client = started
    engine.submit(asked())
    (first,) = client.wait_started(1)
    engine.cancel(1)
    recorder.wait_end(1)
    assert client.wait_aborted(1) == [first.request_id]
    recorder.forget([1])
    engine.submit(asked())
    second = client.wait_started(2)[1]
    # What vLLM still sends for the first is nobody's.
    client.step(CoreOutput(first.request_id, [9]), CoreOutput(second.request_id, [4], finish_reason="length"))
    recorder.wait_end(1)
    assert recorder.tokens[1] == [4]


def test_a_stop_word_aborts_what_goes_on_in_vllm(started: Started) -> None:
    engine, recorder, client = started
    engine.submit(asked(stop_words=((5,),)))
    (one,) = client.wait_started(1)
    client.step(CoreOutput(one.request_id, [4, 5, 6]))
    recorder.wait_end(1)
    assert recorder.tokens[1] == [4, 5]
    assert client.wait_aborted(1) == [one.request_id]


def test_what_is_refused_does_not_reach_vllm(started: Started) -> None:
    engine, recorder, client = started
    engine.submit(asked(request_id=1, sampling=SamplingParams(temperature=3)))
    engine.submit(asked(request_id=2, max_tokens=0))
    engine.submit(asked(request_id=3))
    (one,) = client.wait_started(1)
    client.refuse(one.request_id, "vLLM's own sentence")
    recorder.wait_end(1, 2, 3)
    assert [recorder.ends[i].finish_reason for i in (1, 2, 3)] == ["error", "length", "error"]
    assert recorder.ends[1].invalid
    assert (recorder.ends[3].invalid, recorder.ends[3].error) == (True, "vLLM's own sentence")


def test_a_death_ends_all_requests_at_once_and_refuses_later_ones(started: Started) -> None:
    engine, recorder, client = started
    for number in range(5):
        engine.submit(asked(request_id=number))
    client.wait_started(5)
    client.die()
    recorder.wait_end(*range(5))
    engine.submit(asked(request_id=9))
    recorder.wait_end(9)
    assert {recorder.reason(i) for i in (*range(5), 9)} == {"error"}
    assert not any(end.invalid for end in recorder.ends.values())
    assert engine.stats().failed
    assert len(client.started) == 5
    with pytest.raises(PrefixCacheError):
        engine.reset_prefix_cache()


def test_a_workers_end_is_the_engines_death(request: pytest.FixtureRequest) -> None:
    """At once, though vLLM has said nothing of it yet; other processes may come and go."""
    commands = (["VLLM::Worker_TP1", "-c", "input()"], ["VLLM::Helper", "-c", "input()"])
    worker, other = (subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE) for words in commands)
    with worker, other:
        engine, recorder, client = request.getfixturevalue("started")
        other.kill()
        other.wait()
        engine.submit(asked(request_id=1))
        client.wait_started(1)
        assert not engine.stats().failed
        worker.kill()
        recorder.wait_end(1)
    assert recorder.reason(1) == "error"
    assert engine.stats().failed


def test_a_death_ends_calls_that_wait_for_vllm(started: Started, checkpoint: Path, tmp_path: Path) -> None:
    engine, _, client = started
    client.pending = asyncio.Event()
    folder = make_adapter(checkpoint, tmp_path / "a", r=2, target_modules=["q_proj"])
    failure: list[BaseException] = []

    def load() -> None:
        try:
            engine.load_lora("a", str(folder))
        except LoraError as error:
            failure.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    client.die()
    thread.join(60)
    assert not thread.is_alive()
    assert failure
    assert engine.info.lora_names == ()


def test_close_ends_what_is_live(started: Started) -> None:
    engine, recorder, client = started
    engine.submit(asked())
    client.wait_started(1)
    engine.close()
    assert recorder.reason(1) == "cancelled"
    engine.submit(asked(request_id=2))
    assert recorder.reason(2) == "cancelled"
    with pytest.raises(LoraError):
        engine.load_lora("a", "/nowhere")


def test_a_prefix_cache_in_use_is_busy(started: Started) -> None:
    engine, _, client = started
    engine.reset_prefix_cache()
    client.idle = False
    with pytest.raises(PrefixCacheError) as caught:
        engine.reset_prefix_cache()
    assert caught.value.busy


def test_adapters_come_and_go(started: Started, checkpoint: Path, tmp_path: Path) -> None:
    engine, recorder, client = started
    folders = {name: str(make_adapter(checkpoint, tmp_path / name, r=2, target_modules=["q_proj"])) for name in "ab"}
    for name, folder in folders.items():
        engine.load_lora(name, folder)
    numbers = {adapter.name: adapter.number for adapter in client.loras}
    assert len(set(numbers.values())) == 2
    with pytest.raises(LoraError, match=r" 2 adapters .*--max-loras"):
        engine.load_lora("c", folders["a"])
    engine.submit(asked(lora_name="a"))
    (one,) = client.wait_started(1)
    assert one.lora is not None
    assert one.lora.number == numbers["a"]
    # A request that runs keeps its adapter, and the adapter its room.
    engine.unload_lora("a")
    assert client.removed == []
    with pytest.raises(LoraError, match=r"requests .* a:"):
        engine.load_lora("c", folders["a"])
    engine.submit(asked(request_id=2, lora_name="a"))
    recorder.wait_end(2)
    assert recorder.ends[2].invalid
    client.step(CoreOutput(one.request_id, [4], finish_reason="length"))
    recorder.wait_end(1)
    engine.load_lora("a", folders["a"])
    assert client.removed == [numbers["a"]]
    # Named and filled as before, it is the same to vLLM.
    assert client.loras[-1].number == numbers["a"]
    assert client.loras[-1].key == client.loras[0].key


def test_a_model_that_does_not_load(checkpoint: Path) -> None:
    def open_client() -> Opened:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        VllmEngine(open_client, Recorder(), checkpoint=checkpoint)


@pytest.fixture
def constrained() -> Iterator[Started]:
    """With the demo's vocabulary and grammars."""
    clients: list[ScriptedClient] = []
    info = msgspec.structs.replace(INFO, vocab_size=demo().size, grammar_kinds=("json_schema", "regex", "lark"))

    def open_client() -> Opened:
        clients.append(ScriptedClient())
        grammars = Grammars(DEMO, demo().size, (2,))
        return Opened(clients[0], info, grammars=grammars)

    recorder = Recorder()
    engine = VllmEngine(open_client, recorder)
    yield engine, recorder, clients[0]
    engine.close()
    assert recorder.breaches == []


def _ids(text: str) -> list[int]:
    return [demo().id_of_byte[byte] for byte in text.encode()]


def test_a_grammar_that_does_not_compile_never_reaches_vllm(constrained: Started) -> None:
    engine, recorder, client = constrained
    engine.submit(asked(request_id=1, grammar=Grammar("regex", "(")))
    recorder.wait_end(1)
    assert recorder.deltas(1)[-1].invalid
    engine.submit(asked(request_id=2, grammar=Grammar("regex", "ab")))
    assert [one.request_id for one in client.wait_started(1)] == [client.started[0].request_id]
    assert client.started[0].structured_outputs is not None


def test_a_compiler_of_grammars_that_fails_is_the_engines_fault(
    constrained: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Grammars, request: GenerationRequest) -> NoReturn:
        raise RuntimeError("no memory")

    engine, recorder, client = constrained
    with monkeypatch.context() as patched:
        patched.setattr(Grammars, "constrain", broken)
        engine.submit(asked(request_id=1, grammar=Grammar("regex", "ab")))
        recorder.wait_end(1)
    last = recorder.deltas(1)[-1]
    assert (last.finish_reason, last.invalid, last.error) == ("error", False, ENGINE_FAILED)
    engine.submit(asked(request_id=2))
    client.wait_started(1)


def test_the_token_after_which_nothing_may_follow_ends_the_sequence(constrained: Started) -> None:
    engine, recorder, client = constrained
    engine.submit(asked(grammar=Grammar("regex", "ab")))
    (one,) = client.wait_started(1)
    client.step(CoreOutput(one.request_id, _ids("a")))
    client.step(CoreOutput(one.request_id, _ids("b")))
    recorder.wait_end(1)
    assert (recorder.tokens[1], recorder.reason(1)) == (_ids("ab"), "stop")
    assert client.wait_aborted(1) == [one.request_id]


def test_an_output_that_leaves_its_grammar_or_ends_too_soon_is_an_error(constrained: Started) -> None:
    engine, recorder, client = constrained
    for number, tokens, reason in ((1, _ids("c"), None), (2, [*_ids("a"), 2], "stop")):
        engine.submit(asked(request_id=number, grammar=Grammar("regex", "ab"), stop_token_ids=(2,)))
        one = client.wait_started(number)[-1]
        client.step(CoreOutput(one.request_id, tokens, finish_reason=reason, stop_reason=2 if reason else None))
        recorder.wait_end(number)
        assert recorder.reason(number) == "error"


def test_a_request_that_is_cancelled_while_its_grammar_is_compiled_does_not_start(constrained: Started) -> None:
    engine, recorder, client = constrained
    engine.submit(asked(request_id=1, grammar=Grammar("regex", "[a-z]{1,200}")))
    engine.cancel(1)
    recorder.wait_end(1)
    engine.submit(asked(request_id=2))
    client.wait_started(1)
    assert recorder.reason(1) == "cancelled"
