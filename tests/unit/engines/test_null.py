"""The null engine's own promises: known tokens, known pace, known failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from openai_bls.core.engine_types import Grammar, Logprobs, SamplingParams
from openai_bls.engines.null.engine import next_due
from tests.engine_contract.support import VOCAB_SIZE, request
from tests.prompt_logprobs import unpacked

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory


def test_echo(start: EngineFactory) -> None:
    engine, recorder = start(engine="null", null_echo="true")
    prompt = list(range(20, 60))
    engine.submit(request(1, prompt=prompt, max_tokens=100))
    engine.submit(request(2, prompt=prompt, max_tokens=40))
    engine.submit(request(3, prompt=prompt, max_tokens=7))
    engine.submit(request(4, prompt=prompt, max_tokens=100, stop_token_ids=(30,)))
    recorder.wait_end(1, 2, 3, 4)
    assert recorder.tokens == {1: prompt, 2: prompt, 3: prompt[:7], 4: prompt[:10]}
    assert [recorder.reason(i) for i in (1, 2, 3, 4)] == ["stop", "length", "length", "stop"]
    assert recorder.ends[1].stop_token_id == 257
    assert recorder.ends[4].stop_token_id == 30


def test_fault_by_prompt(start: EngineFactory) -> None:
    engine, recorder = start(engine="null", null_fail_on_token_id="99")
    engine.submit(request(1, prompt=(5, 99), max_tokens=5))
    engine.submit(request(2, max_tokens=5))
    recorder.wait_end(1, 2)
    assert recorder.reason(1) == "error"
    assert not recorder.ends[1].invalid
    assert recorder.reason(2) == "length"


def test_crash(start: EngineFactory) -> None:
    engine, recorder = start(engine="null", null_crash_at_step="4")
    ids = range(40)
    for i in ids:
        engine.submit(request(i, max_tokens=100))
    recorder.wait_end(*ids)
    assert {recorder.reason(i) for i in ids} == {"error"}
    assert max(len(recorder.tokens.get(i, [])) for i in ids) == 3
    assert engine.stats().failed
    engine.submit(request(100))
    recorder.wait_end(100)
    assert recorder.reason(100) == "error"


def test_pace_does_not_drift() -> None:
    """Late wake-ups do not add up, and a long stall is not made up for by a burst."""
    due = 100.0
    for late in (0.0, 0.0004, 0.001, 0.0):
        due = next_due(due, due + late, 0.002)
    assert due == pytest.approx(100.008)
    assert next_due(due, due + 1.0, 0.002) == pytest.approx(due + 1.002)
    assert next_due(due, due + 1.0, 0.0) == due + 1.0


def test_slow_first_token_can_be_cancelled(start: EngineFactory) -> None:
    engine, recorder = start(engine="null", null_first_token_delay_ms="3600000")
    engine.submit(request(1))
    engine.submit(request(2))
    engine.cancel(1)
    recorder.wait_end(1)
    assert recorder.reason(1) == "cancelled"
    assert 2 not in recorder.ends


CHANGING: list[tuple[str, dict[str, Any]]] = [
    ("bad_words", {"bad_words": ((3,),)}),
    ("repetition_penalty", {"sampling": SamplingParams(repetition_penalty=1.1)}),
    ("presence_penalty", {"sampling": SamplingParams(presence_penalty=-1)}),
    ("frequency_penalty", {"sampling": SamplingParams(frequency_penalty=0.1)}),
    ("logit_bias", {"sampling": SamplingParams(logit_bias={3: 0.0})}),
    ("grammar", {"grammar": Grammar(kind="regex", text="a")}),
    ("pooling", {"max_tokens": 0, "pooling": "mean"}),
    ("lora_name", {"lora_name": "red"}),
]


def test_what_would_change_the_tokens_is_refused(start: EngineFactory) -> None:
    engine, recorder = start(engine="null")
    for i, (field, asked) in enumerate(CHANGING):
        assert field not in engine.info.supported
        engine.submit(request(i, **asked))
        recorder.wait_end(i)
        assert recorder.ends[i].invalid
        assert field in (recorder.ends[i].error or "")


def test_adapters_shift_the_tokens(start: EngineFactory) -> None:
    engine, recorder = start(engine="null", null_token_ids="4,5,6", null_lora_names="red, blue")
    assert engine.info.lora_names == ("red", "blue")
    assert "lora_name" in engine.info.supported
    engine.submit(request(1, max_tokens=7))
    engine.submit(request(2, max_tokens=7, lora_name="blue"))
    engine.submit(request(3, lora_name="green"))
    recorder.wait_end(1, 2, 3)
    assert recorder.tokens[1] == [4, 5, 6, 4, 5, 6, 4]
    assert recorder.tokens[2] == [5, 6, 4, 5, 6, 4, 5]
    assert recorder.ends[3].invalid
    assert "lora_name" in (recorder.ends[3].error or "")


def test_made_up_logprobs(start: EngineFactory) -> None:
    engine, recorder = start(engine="null", null_token_ids=f"4,{VOCAB_SIZE - 1}")
    engine.submit(request(1, prompt=(7, 8), max_tokens=2, logprobs=3, prompt_logprobs=1))
    recorder.wait_end(1)
    one, two = recorder.deltas(1)
    assert unpacked(one.prompt_logprobs) == Logprobs([0.0], [[8]], [[0.0]])
    assert one.logprobs == Logprobs([0.0], [[4, 5, 6]], [[0.0, -1.0, -2.0]])
    assert two.logprobs == Logprobs([0.0], [[VOCAB_SIZE - 1, 0, 1]], [[0.0, -1.0, -2.0]])
    assert two.prompt_logprobs is None


def test_min_tokens_puts_off_the_end(start: EngineFactory) -> None:
    engine, recorder = start(engine="null", null_echo="true")
    engine.submit(request(1, prompt=(20, 0, 22), max_tokens=9, stop_token_ids=(0,), min_tokens=5))
    engine.submit(request(2, prompt=(20, 0, 22), max_tokens=5, min_tokens=5))
    recorder.wait_end(1, 2)
    assert recorder.tokens[1] == [20, 1, 22, 1, 1]
    assert (recorder.reason(1), recorder.ends[1].stop_token_id) == ("stop", 257)
    assert recorder.tokens[2] == [20, 0, 22, 0, 0]
    assert (recorder.reason(2), recorder.ends[2].stop_token_id) == ("length", None)
