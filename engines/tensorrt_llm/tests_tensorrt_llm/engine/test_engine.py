"""What the engine makes of TensorRT-LLM's outputs; test_conformance.py has the contract's rules for all engines."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import LoraError, PrefixCacheError
from openai_bls.core.engine_types import SamplingParams, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.kv_events.publisher import KvEventPublisher, KvEventsConfig
from openai_bls_tensorrt_llm import engine as engine_module
from openai_bls_tensorrt_llm import health_watch
from openai_bls_tensorrt_llm.installed.interface import LoraAdapter
from tests.kv_events import Consumer
from tests.unit.builder.repositories import make_adapter
from tests_tensorrt_llm.engine.scripted_api import (
    ADAPTER,
    END,
    PATIENCE_S,
    RequestError,
    Starter,
    push_together,
    request,
)


def test_tokens_as_they_come(scripted: Starter) -> None:
    world = scripted()
    recorder, output = world.recorder, world.begin(1)
    for count, token in enumerate((5, 6, 7), 1):
        output.push(token)
        recorder.wait_tokens(1, count)
    output.push(finish="stop")
    recorder.wait_end(1)
    assert recorder.deltas(1) == [
        TokenDelta(1, [5]),
        TokenDelta(1, [6]),
        TokenDelta(1, [7]),
        TokenDelta(1, [], "stop", END),
    ]
    assert not output.aborted.is_set()


def test_a_step_of_all_requests_is_one_frame(scripted: Starter) -> None:
    engine, api, recorder = scripted()
    for i in range(1, 5):
        engine.submit(request(i))
    outputs = api.next_of(4)
    for _ in range(3):
        push_together(outputs, 8)
    push_together(outputs, 9, finish="stop")
    recorder.wait_end(1, 2, 3, 4)
    assert {tuple(tokens) for tokens in recorder.tokens.values()} == {(8, 8, 8, 9)}
    assert {len(step) for step in recorder.steps} == {4}
    assert len(recorder.steps) == engine.stats().steps <= 4


def test_steps_that_pile_up_are_one_delta(scripted: Starter) -> None:
    """The listener is slow: what TensorRT-LLM has brought meanwhile comes at once."""
    world = scripted()
    recorder, output = world.recorder, world.begin(1)
    output.push_steps(5, 6, 7)
    output.push(8, finish="length")
    recorder.wait_end(1)
    assert recorder.tokens[1] == [5, 6, 7, 8]
    assert len(recorder.deltas(1)) <= 2


def test_what_goes_on_after_its_end_is_aborted(scripted: Starter) -> None:
    engine, api, recorder = scripted()
    engine.submit(request(1, stop_words=((5, 6),)))
    engine.submit(request(2, max_tokens=2))
    engine.submit(request(3))
    word, length, cancelled = api.next_of(3)
    word.push(4, 5)
    word.push(6, 7)
    length.push(4, 5)
    recorder.wait_end(1, 2)
    engine.cancel(3)
    recorder.wait_end(3)
    assert recorder.tokens == {1: [4, 5, 6], 2: [4, 5], 3: []}
    assert [recorder.reason(i) for i in (1, 2, 3)] == ["stop", "length", "cancelled"]
    for output in (word, length, cancelled):
        assert output.aborted.wait(PATIENCE_S)
        output.push(9, finish="cancelled")
    assert engine.stats().running == 0


def test_a_failure_to_abort_does_no_harm(scripted: Starter, caplog: pytest.LogCaptureFixture) -> None:
    world = scripted()
    world.begin(1).abort_error = RuntimeError("the executor is not set")
    world.engine.cancel(1)
    world.recorder.wait_end(1)
    assert world.recorder.reason(1) == "cancelled"
    world.answer(2)
    assert "the executor is not set" in caplog.text


@pytest.mark.parametrize("error", [RequestError("too long"), AssertionError(), ValueError("Unknown finish reason")])
def test_a_request_that_fails_fails_alone(
    scripted: Starter, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world = scripted()
    recorder, first, second = world.recorder, world.begin(1), world.begin(2)
    first.push(4)
    first.fail(error)
    recorder.wait_end(1)
    second.push(5, finish="length")
    recorder.wait_end(2)
    assert (recorder.ends[1].error, recorder.ends[1].invalid) == (ENGINE_FAILED, False)
    assert recorder.reason(2) == "length"
    assert type(error).__name__ in caplog.text


def test_an_output_that_cannot_be_read_fails_alone(scripted: Starter, caplog: pytest.LogCaptureFixture) -> None:
    world = scripted()
    recorder, first, second = world.recorder, world.begin(1, logprobs=2), world.begin(2)
    first.push(4, finish="length")
    recorder.wait_end(1)
    second.outputs.clear()
    second.push(4)
    recorder.wait_end(2)
    assert [recorder.ends[i].error for i in (1, 2)] == [ENGINE_FAILED] * 2
    assert second.aborted.is_set()
    assert "log-probabilities" in caplog.text
    assert "IndexError" in caplog.text


def test_log_probabilities_of_each_response_alone(scripted: Starter) -> None:
    """As 0.20 has them; several responses are taken in before the engine looks."""
    world = scripted()
    recorder = world.recorder
    world.begin(1, logprobs=0, max_tokens=4).push_steps(5, 6, 7, 8, newest_logprobs=True)
    recorder.wait_end(1)
    told = [value for delta in recorder.deltas(1) if delta.logprobs for value in delta.logprobs.token_logprobs]
    assert recorder.tokens[1] == [5, 6, 7, 8]
    assert told == [-5.0, -6.0, -7.0, -8.0]


def test_a_request_that_the_version_cannot_honour(scripted: Starter) -> None:
    world = scripted()
    world.api.generate_error = ValueError("min_p\nmore")
    world.engine.submit(request(1))
    world.recorder.wait_end(1)
    assert (world.recorder.ends[1].invalid, world.recorder.ends[1].error) == (True, "min_p")
    world.api.generate_error = None
    world.answer(2)


def test_what_tensorrt_llm_is_asked_for(scripted: Starter) -> None:
    params = SamplingParams(temperature=0.5, top_k=9, seed=11, logit_bias={4: -2.0}, min_p=0.1)
    named: dict[str, Any] = {"lora_name": "tuned", "logprobs": 0, "sampling": params}
    output = scripted().begin(1, stop_token_ids=(7, 91, END), bad_words=((3, 4),), **named)
    asked = output.sampling
    assert output.prompt_token_ids == [1, 2, 3]
    assert output.lora == ADAPTER
    assert (asked.end_id, asked.pad_id, asked.stop_token_ids) == (END, 92, (7, 91))
    assert (asked.max_tokens, asked.bad_words, asked.logprobs) == (20, ((3, 4),), 0)
    assert (asked.params, asked.vocab_size) == (params, 100)


def test_the_prefix_cache_is_not_reset(scripted: Starter) -> None:
    with pytest.raises(PrefixCacheError, match="TensorRT-LLM") as caught:
        scripted().engine.reset_prefix_cache()
    assert not caught.value.busy


def test_cached_tokens(scripted: Starter) -> None:
    world = scripted()
    recorder, output = world.recorder, world.begin(1)
    output.cached_tokens = 2
    output.push(4)
    recorder.wait_tokens(1)
    output.push(5, finish="length")
    recorder.wait_end(1)
    assert [delta.cached_tokens for delta in recorder.deltas(1)] == [2, 0]


def test_stats(scripted: Starter) -> None:
    engine, api, recorder = scripted(max_tokens_in_kv_cache=100)
    for i in range(6):
        engine.submit(request(i))
    outputs = api.next_of(6)
    push_together(outputs, 4, 5)
    for i in range(6):
        recorder.wait_tokens(i, 2)
    load = engine.stats()
    assert (load.running, load.waiting, load.generated_tokens) == (4, 2, 12)
    assert load.kv_cache_usage == pytest.approx(6 * 5 / 100)
    push_together(outputs, finish="stop")
    recorder.wait_end(*range(6))
    load = engine.stats()
    assert (load.running, load.waiting, load.kv_cache_usage) == (0, 0, 0)
    assert load.generated_tokens == 18  # with the end tokens


def test_close_aborts_what_runs(scripted: Starter) -> None:
    world = scripted()
    recorder, outputs = world.recorder, [world.begin(1), world.begin(2)]
    world.engine.close()
    assert all(output.aborted.is_set() for output in outputs)
    assert {recorder.reason(1), recorder.reason(2)} == {"cancelled"}


def test_close_from_the_listener(scripted: Starter) -> None:
    world = scripted()
    recorder = world.recorder
    recorder.after = lambda _: world.engine.close()
    world.begin(1).push(4)
    recorder.wait_end(1)
    assert recorder.reason(1) == "cancelled"


def test_the_loop_runs_until_all_is_shut_down(scripted: Starter) -> None:
    """What was aborted has responses to come."""
    world = scripted()
    engine, api, recorder = world
    assert api.llm is not None
    api.llm.hold.clear()
    output = world.begin(1)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert api.llm.shutting_down.wait(PATIENCE_S)
    handed_over = threading.Event()
    output.loop.call_soon_threadsafe(handed_over.set)
    assert handed_over.wait(PATIENCE_S)
    assert closing.is_alive()
    api.llm.hold.set()
    closing.join(PATIENCE_S)
    assert recorder.reason(1) == "cancelled"


def test_a_shutdown_that_hangs_is_left_behind(
    scripted: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = scripted()
    monkeypatch.setattr(engine_module, "CLOSE_S", 0.01)
    assert world.api.llm is not None
    world.api.llm.hold.clear()
    world.begin(1)
    world.engine.close()
    world.recorder.wait_end(1)
    assert "shut down" in caplog.text
    monkeypatch.undo()


def test_a_shutdown_that_fails_is_logged(scripted: Starter, caplog: pytest.LogCaptureFixture) -> None:
    engine, api, _ = scripted()
    assert api.llm is not None
    api.llm.shutdown_error = RuntimeError("MPI has gone")
    with caplog.at_level(logging.ERROR):
        engine.close()
    assert "MPI has gone" in caplog.text


def test_adapters_that_come_and_go(scripted: Starter, tmp_path: Path) -> None:
    world = scripted()
    engine, _, recorder = world
    folder = make_adapter(tmp_path / "adapter")
    with pytest.raises(LoraError, match=r" up_proj, .* q_proj"):
        engine.load_lora("new", str(make_adapter(tmp_path / "other", module="mlp.up_proj")))
    engine.load_lora("new", str(folder))
    assert engine.info.lora_names == ("tuned", "new")
    with pytest.raises(LoraError, match=r" 2 adapters .*--max-loras"):
        engine.load_lora("newer", str(folder))
    running = world.begin(1, lora_name="new")
    assert running.lora == LoraAdapter("new", folder, 2)
    engine.unload_lora("new")
    engine.submit(request(2, lora_name="new"))
    recorder.wait_end(2)
    assert recorder.ends[2].invalid
    running.push(4, finish="length")
    recorder.wait_end(1)
    assert recorder.reason(1) == "length"
    # Unchanged under the number that it had; changed under its own, since TensorRT-LLM has the other's weights still.
    for request_id, number in ((3, 2), (4, 3)):
        engine.load_lora("new", str(folder))
        assert world.begin(request_id, lora_name="new").lora == LoraAdapter("new", folder, number)
        engine.unload_lora("new")
        make_adapter(folder, rank=3)
    with pytest.raises(LoraError, match="newer"):
        engine.unload_lora("newer")


def test_kv_events_are_vllms(scripted: Starter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A block of three of a prompt's is not full; the first two come with their parents, and go one by one."""
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    endpoints = (f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    world = scripted(kv_events=KvEventPublisher(KvEventsConfig(*endpoints)))
    consumer = Consumer(*endpoints)
    numbers = itertools.count(1)

    def tell(*told: dict[str, Any]) -> None:
        # Some of TensorRT-LLM's versions give the text, and null where there is nothing.
        world.api.kv_events += ["null", None, *({"event_id": n, "data": data} for n, data in enumerate(told))]
        world.answer(next(numbers))

    def block(block_hash: int, tokens: range) -> dict[str, Any]:
        return {"block_hash": block_hash, "tokens": [{"token_id": token} for token in tokens], "cache_level": 0}

    blocks = [block(11, range(32)), block(12, range(32, 64)), block(13, range(64, 70))]
    tell(
        {"type": "created", "num_blocks_per_cache_level": [100, 0]},
        {"type": "stored", "parent_hash": None, "blocks": blocks},
        {"type": "stored", "parent_hash": 12, "blocks": [block(14, range(100, 132))]},
        {"type": "updated", "block_hash": 12, "cache_level": {"old_value": 0, "new_value": 1}},
        {"type": "removed", "block_hashes": [13]},
    )
    consumer.until(lambda: set(consumer.blocks) == {11, 12, 14})
    assert consumer.tokens(14) == [*range(64), *range(100, 132)]
    tell({"type": "removed", "block_hashes": [14]})
    consumer.until(lambda: set(consumer.blocks) == {11, 12})
    consumer.close()
