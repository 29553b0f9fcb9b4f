"""The engine under load and through failures, over the fake package: each request is answered once, nothing stays."""

from __future__ import annotations

import gc
import random
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.manifest import load_manifest
from openai_bls.core.settings import TensorRtLlmSettings
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.tensorrt_llm import health_watch
from openai_bls.engines.tensorrt_llm.api import Api
from openai_bls.engines.tensorrt_llm.engine import TrtLlmEngine
from openai_bls.engines.tensorrt_llm.loading import load
from tests.unit.engines.engine_support import Recorder
from tests.unit.engines.tensorrt_llm.fake_engines import write_fake_engine
from tests.unit.engines.tensorrt_llm.fake_support import in_process

END = 90
SCRIPT = [5, 6, 7, 8]


def small_engine(folder: Path, api: Api, recorder: Any, max_batch_size: int = 4) -> TrtLlmEngine:
    """Answers SCRIPT and then the end token; 64 tokens in all."""
    checkpoint = folder / "tiny"
    checkpoint.mkdir()
    config = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 100, "eos_token_id": END}
    (checkpoint / "config.json").write_bytes(msgspec.json.encode(config | {"max_position_embeddings": 64}))
    version_dir = write_fake_engine(
        folder / "1", checkpoint, "tensorrt", api, max_model_len=64, max_batch_size=max_batch_size
    )
    engine = load(version_dir, load_manifest(version_dir), TensorRtLlmSettings(), recorder, api=api)
    assert isinstance(engine, TrtLlmEngine)
    return engine


def request(request_id: int, max_tokens: int = 20, **more: Any) -> GenerationRequest:
    fields = {"prompt_token_ids": [1, 2, 3], "stop_token_ids": (END,)} | more
    return GenerationRequest(request_id=request_id, max_tokens=max_tokens, **fields)


def endless(request_id: int) -> GenerationRequest:
    return request(request_id, max_tokens=60, stop_token_ids=())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)


def test_many_requests_and_random_cancellations(tmp_path: Path) -> None:
    rng, recorder = random.Random(4), Recorder()
    with in_process(tokens="5,6,7,8") as api:
        engine = small_engine(tmp_path, api, recorder, max_batch_size=3)

        def client(first: int) -> None:
            for i in range(first, first + 75):
                engine.submit(endless(i) if i % 3 == 0 else request(i, logprobs=0 if i % 5 == 0 else None))
                if i % 3 == 0:
                    engine.cancel(rng.randint(max(0, i - 20), i))

        clients = [threading.Thread(target=client, args=(first,)) for first in range(0, 300, 75)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        recorder.wait_end(*range(300))
        load_left = engine.stats()
        engine.close()
    assert recorder.breaches == []
    assert (load_left.running, load_left.waiting) == (0, 0)
    reasons = {i: recorder.reason(i) for i in range(300)}
    assert set(reasons.values()) == {"stop", "length", "cancelled"}
    for i, reason in reasons.items():
        if reason == "stop":
            assert recorder.tokens[i] == SCRIPT
        elif reason == "length":
            assert recorder.tokens[i] == SCRIPT * 15
        else:
            assert recorder.tokens[i] == (SCRIPT * 15)[: len(recorder.tokens[i])]


@pytest.mark.parametrize("what", ["serve:fatal", "serve:silent", "submit:no room"])
def test_an_executor_that_dies_under_load(what: str, tmp_path: Path) -> None:
    recorder, switch = Recorder(), tmp_path / "failure"
    with in_process(tokens="5,6,7,8", fail_file=str(switch), step_delay_ms="1") as api:
        engine = small_engine(tmp_path, api, recorder)
        for i in range(100):
            engine.submit(endless(i))
        recorder.wait_tokens(0)
        switch.write_text(what)
        for i in range(100, 200):
            engine.submit(request(i))
        recorder.wait_end(*range(200))
        engine.submit(request(200))
        recorder.wait_end(200)
        load_left = engine.stats()
        engine.close()
    assert recorder.breaches == []
    assert {recorder.ends[i].error for i in range(4, 201)} <= {ENGINE_FAILED, None}
    assert {recorder.ends[i].error for i in range(100, 201)} == {ENGINE_FAILED}
    assert (load_left.running, load_left.waiting) == (0, 0)


def test_closing_while_others_submit(tmp_path: Path) -> None:
    recorder, go = Recorder(), threading.Barrier(4)
    with in_process(tokens="5,6,7,8") as api:
        engine = small_engine(tmp_path, api, recorder)

        def client(first: int) -> None:
            go.wait()
            for i in range(first, first + 100):
                engine.submit(endless(i))

        clients = [threading.Thread(target=client, args=(first,)) for first in (0, 100, 200)]
        for one in clients:
            one.start()
        go.wait()
        recorder.wait_tokens(0)
        engine.close()
        for one in clients:
            one.join()
        engine.close()
    assert set(recorder.ends) == set(range(300))
    assert recorder.breaches == []


def test_a_slow_listener_gets_what_piled_up_at_once(tmp_path: Path) -> None:
    recorder, held, entered = Recorder(), threading.Event(), threading.Event()
    steps_before: list[int] = []

    def slow(deltas: Sequence[TokenDelta]) -> None:
        if any(delta.request_id == 3 for delta in deltas) and not steps_before:
            steps_before.append(len(recorder.steps))
            entered.set()
            held.wait()
        recorder(deltas)

    with in_process(tokens="5,6,7,8") as api:
        engine = small_engine(tmp_path, api, slow)
        for i in range(4):
            engine.submit(endless(i))
        assert entered.wait(60)
        # TensorRT-LLM goes on meanwhile, to the end of all four.
        responses = [live.output._responses for live in list(engine._live.values())]  # type: ignore[union-attr]
        pause = threading.Event()
        while not all(waiting and waiting[-1].is_final for waiting in responses):
            pause.wait(0.001)
        held.set()
        recorder.wait_end(*range(4))
        engine.close()
    assert {tuple(tokens) for tokens in recorder.tokens.values()} == {tuple(SCRIPT * 15)}
    assert len(recorder.steps) - steps_before[0] <= 3
    assert recorder.breaches == []


def test_a_listener_that_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    def fails(deltas: Sequence[TokenDelta]) -> None:
        recorder(deltas)
        raise RuntimeError("the listener is broken")

    with in_process(tokens="5,6,7,8") as api:
        engine = small_engine(tmp_path, api, fails)
        for i in range(20):
            engine.submit(request(i))
        recorder.wait_end(*range(20))
        engine.close()
    assert {recorder.reason(i) for i in range(20)} == {"stop"}
    assert "the listener is broken" in caplog.text


def test_ids_that_are_used_again(tmp_path: Path) -> None:
    """As soon as their request has ended, however it did."""
    recorder = Recorder()
    with in_process(tokens="5,6,7,8") as api:
        engine = small_engine(tmp_path, api, recorder)
        for turn in range(20):
            for i in range(5):
                engine.submit(endless(i) if turn % 2 else request(i))
            for i in range(5) if turn % 2 else ():
                engine.cancel(i)
            recorder.wait_end(*range(5))
            assert {recorder.reason(i) for i in range(5)} == ({"cancelled"} if turn % 2 else {"stop"})
            recorder.forget(range(5))
        engine.close()
    assert recorder.breaches == []


def test_memory_does_not_grow(tmp_path: Path) -> None:
    """Ends are counted; nothing else of a request is kept."""
    ended = threading.Semaphore(0)

    def count(deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            if delta.finish_reason is not None:
                ended.release()

    with in_process(tokens="5,6,7,8") as api:
        engine = small_engine(tmp_path, api, count, max_batch_size=16)

        def run(first: int, number: int) -> None:
            for i in range(first, first + number):
                engine.submit(request(i, logprobs=0) if i % 2 else request(i, 8, stop_token_ids=()))
                if i % 4 == 0:
                    engine.cancel(i)
            for _ in range(number):
                assert ended.acquire(timeout=60)

        run(0, 300)
        gc.collect()
        tracemalloc.start()
        try:
            for first in range(300, 2300, 200):
                run(first, 200)
            gc.collect()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        engine.close()
    assert engine._live == {}
    # A hundred bytes a request would be 200 kB.
    assert grown < 150_000
