"""What the engine makes of TensorRT-LLM's outputs, and of its failures; the contract's rules are tested for all engines
together (test_conformance.py)."""

from __future__ import annotations

import gc
import itertools
import logging
import re
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import LoraError, PrefixCacheError
from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams, TokenDelta
from openai_bls.core.manifest import load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.engine_info import engine_info
from openai_bls.engines.kv_events.publisher import KvEventPublisher, KvEventsConfig
from openai_bls_tensorrt_llm import engine as engine_module
from openai_bls_tensorrt_llm import health_watch
from openai_bls_tensorrt_llm.engine import TrtLlmEngine
from openai_bls_tensorrt_llm.installed.interface import Flow, LlmOptions, LoraAdapter
from openai_bls_tensorrt_llm.loaded_adapters import LoadedAdapters
from openai_bls_tensorrt_llm.loading import load
from tests.engine_contract.support import Recorder
from tests.kv_events import Consumer
from tests.unit.builder.repositories import make_adapter
from tests.unit.core_support import VOCAB_SIZE as TINY_VOCAB_SIZE
from tests.unit.core_support import tiny_tokenizer
from tests_tensorrt_llm.engine.fake_engines import write_fake_engine
from tests_tensorrt_llm.engine.fake_support import VERSIONS, in_process, small_checkpoint
from tests_tensorrt_llm.engine.scripted_api import (
    END,
    FACTS,
    PATIENCE_S,
    TUNED,
    RequestError,
    ScriptedApi,
    ScriptedOutput,
    manifest,
    push_together,
)

Starter = Callable[..., tuple[TrtLlmEngine, ScriptedApi, Recorder]]
ADAPTER = LoraAdapter("tuned", Path("lora/tuned"), 1)


def request(request_id: int, max_tokens: int = 20, **more: Any) -> GenerationRequest:
    fields = {"prompt_token_ids": [1, 2, 3], "stop_token_ids": (END,)} | more
    return GenerationRequest(request_id=request_id, max_tokens=max_tokens, **fields)


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start an engine over a scripted API; closed and checked at the end."""
    started: list[tuple[TrtLlmEngine, ScriptedApi, Recorder]] = []

    def start_one(**more: Any) -> tuple[TrtLlmEngine, ScriptedApi, Recorder]:
        api, recorder = ScriptedApi(), Recorder()
        built = manifest(gather_logits=True, lora=TUNED)
        options = LlmOptions(
            model=Path("engine"),
            flow="tensorrt",
            max_batch_size=4,
            max_model_len=64,
            gather_generation_logits=True,
            guided_decoding_backend="xgrammar",
        )
        info = engine_info(
            built,
            FACTS,
            version="1.2.1",
            supported={*api.supported(options), "stop_words"},
            max_logprobs=5,
            grammar_backend="xgrammar",
            grammar_kinds=api.grammar_kinds(options),
        )
        adapters = LoadedAdapters([ADAPTER], info, built.lora, Path(), api.version)
        engine = TrtLlmEngine(api, api.open(options), built, adapters, recorder, **more)
        started.append((engine, api, recorder))
        return started[-1]

    yield start_one
    for engine, api, recorder in started:
        assert api.llm is not None
        api.llm.hold.set()
        engine.close()
        assert api.llm.shutdowns == 1
        assert recorder.breaches == []


def test_tokens_as_they_come(start: Starter) -> None:
    engine, api, recorder = start()
    engine.submit(request(1))
    output = api.next()
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


def test_a_step_of_all_requests_is_one_frame(start: Starter) -> None:
    engine, api, recorder = start()
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


def test_steps_that_pile_up_are_one_delta(start: Starter) -> None:
    """The listener is slow: what TensorRT-LLM has brought meanwhile comes at once."""
    engine, api, recorder = start()
    engine.submit(request(1))
    output = api.next()
    output.push_steps(5, 6, 7)
    output.push(8, finish="length")
    recorder.wait_end(1)
    assert recorder.tokens[1] == [5, 6, 7, 8]
    assert len(recorder.deltas(1)) <= 2


def test_what_goes_on_after_its_end_is_aborted(start: Starter) -> None:
    engine, api, recorder = start()
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


def test_a_failure_to_abort_does_no_harm(start: Starter, caplog: pytest.LogCaptureFixture) -> None:
    engine, api, recorder = start()
    engine.submit(request(1))
    api.next().abort_error = RuntimeError("the executor is not set")
    engine.cancel(1)
    recorder.wait_end(1)
    assert recorder.reason(1) == "cancelled"
    engine.submit(request(2))
    api.next().push(4, finish="length")
    recorder.wait_end(2)
    assert "did not abort" in caplog.text


@pytest.mark.parametrize("error", [RequestError("too long"), AssertionError(), ValueError("Unknown finish reason")])
def test_a_request_that_fails_fails_alone(start: Starter, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    engine, api, recorder = start()
    engine.submit(request(1))
    engine.submit(request(2))
    first, second = api.next_of(2)
    first.push(4)
    first.fail(error)
    recorder.wait_end(1)
    second.push(5, finish="length")
    recorder.wait_end(2)
    assert (recorder.ends[1].error, recorder.ends[1].invalid) == (ENGINE_FAILED, False)
    assert recorder.reason(2) == "length"
    assert type(error).__name__ in caplog.text


def test_an_output_that_cannot_be_read_fails_alone(start: Starter, caplog: pytest.LogCaptureFixture) -> None:
    engine, api, recorder = start()
    engine.submit(request(1, logprobs=2))
    engine.submit(request(2))
    first, second = api.next_of(2)
    first.push(4, finish="length")
    recorder.wait_end(1)
    second.outputs.clear()
    second.push(4)
    recorder.wait_end(2)
    assert [recorder.ends[i].error for i in (1, 2)] == [ENGINE_FAILED] * 2
    assert second.aborted.is_set()
    assert "log-probabilities" in caplog.text
    assert "IndexError" in caplog.text


def refused_by_a_rank(api: ScriptedApi, output: ScriptedOutput) -> None:
    """As 1.0 and later end by an error of a request."""
    api.health = False
    output.fail(RequestError("refused"))


DEATHS: dict[str, Callable[[ScriptedApi, ScriptedOutput], None]] = {
    "an error of its own": lambda _, output: output.fail(RuntimeError("Executor worker died")),
    "an error of a request": refused_by_a_rank,
    "found by the watch": lambda api, _: setattr(api, "health", False),
    # 0.20 would wait for its answer in the thread that all depends on.
    "found by the next request": lambda api, _: setattr(api, "health", False),
    "found by its own refusal": lambda api, _: setattr(api, "generate_error", RuntimeError("LLM is shutting down")),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_dead_executor_fails_all_and_answers_on(
    start: Starter, death: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01 if death == "found by the watch" else 3600.0)
    engine, api, recorder = start()
    for i in (1, 2):
        engine.submit(request(i))
    outputs = api.next_of(2)
    outputs[0].push(4)
    recorder.wait_tokens(1)
    DEATHS[death](api, outputs[1])
    if "next" not in death and "refusal" not in death:
        recorder.wait_end(1, 2)
    engine.submit(request(3))
    engine.submit(request(4, max_tokens=-1))
    recorder.wait_end(1, 2, 3, 4)
    assert {recorder.ends[i].error for i in (1, 2, 3)} == {ENGINE_FAILED}
    assert [recorder.ends[i].invalid for i in (1, 2, 3, 4)] == [False, False, False, True]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert engine.stats().failed
    assert api.outputs.empty()


def test_an_executor_without_progress_fails_all(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a rank on another machine that is killed: all else looks well."""
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    engine, api, recorder = start()
    engine.submit(request(1))
    output = api.next()
    output.push(4)
    recorder.wait_tokens(1)
    monkeypatch.setattr(health_watch, "STALL_S", 0.0)
    recorder.wait_end(1)
    assert recorder.ends[1].error == ENGINE_FAILED
    assert engine.stats().failed
    assert output.aborted.is_set()
    assert caplog.text.count("brings no step any more") == 1


def test_what_counts_as_progress() -> None:
    now = 0.0
    watch = health_watch.ProgressWatch(lambda: now)

    def stalled(after_s: float, *progress: Any) -> bool:
        nonlocal now
        now += after_s
        return watch.stalled(health_watch.Progress(*progress))

    limit, first = health_watch.STALL_S, health_watch.FIRST_STALL_S
    # Idle for any time, and a first step that takes long.
    assert not stalled(0, 0, 0, False)
    assert not stalled(first, 0, 1, False)
    assert not stalled(first - 1, 0, 2, False)
    assert stalled(1, 0, 2, False)
    # Each step begins anew, for all requests.
    assert not stalled(limit, 1, 2, True)
    assert not stalled(limit - 1, 1, 2, True)
    assert not stalled(1, 2, 2, True)
    assert stalled(limit, 2, 2, True)
    # What has ended says nothing of what comes.
    assert not stalled(limit, 3, 0, False)
    assert not stalled(limit, 3, 1, False)


def test_an_idle_executor_that_dies_is_found(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Health checks ask for the engine's state, and not for tokens."""
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    engine, api, recorder = start()
    assert not engine.stats().failed
    api.health = False
    for _ in range(int(PATIENCE_S / 0.01)):
        if engine.stats().failed:
            break
        assert not api.discarded.acquire(timeout=0.01)
    assert engine.stats().failed
    engine.submit(request(1))
    recorder.wait_end(1)
    assert recorder.ends[1].error == ENGINE_FAILED
    assert caplog.text.count("executor has ended") == 1


def test_statistics_are_thrown_away_while_requests_run(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    engine, api, recorder = start()
    assert not api.discarded.acquire(timeout=0.1)
    engine.submit(request(1))
    output = api.next()
    for _ in range(3):
        assert api.discarded.acquire(timeout=PATIENCE_S)
    output.push(4, finish="length")
    recorder.wait_end(1)


def test_statistics_that_cannot_be_thrown_away(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    engine, api, recorder = start()
    api.discard_error = AssertionError("not properly instantiated")
    engine.submit(request(1))
    output = api.next()
    assert api.discarded.acquire(timeout=PATIENCE_S)
    output.push(4, finish="length")
    recorder.wait_end(1)
    engine.close()
    assert caplog.text.count("cannot be thrown away") == 1


def test_log_probabilities_of_each_response_alone(start: Starter) -> None:
    """As 0.20 has them; several responses are taken in before the engine looks."""
    engine, api, recorder = start()
    engine.submit(request(1, logprobs=0, max_tokens=4))
    output = api.next()
    output.push_steps(5, 6, 7, 8, newest_logprobs=True)
    recorder.wait_end(1)
    told = [value for delta in recorder.deltas(1) if delta.logprobs for value in delta.logprobs.token_logprobs]
    assert recorder.tokens[1] == [5, 6, 7, 8]
    assert told == [-5.0, -6.0, -7.0, -8.0]


def test_a_request_that_the_version_cannot_honour(start: Starter) -> None:
    engine, api, recorder = start()
    api.generate_error = ValueError("min_p is not known to TensorRT-LLM 0.20\nmore")
    engine.submit(request(1))
    recorder.wait_end(1)
    assert recorder.ends[1].invalid
    assert recorder.ends[1].error == "min_p is not known to TensorRT-LLM 0.20"
    api.generate_error = None
    engine.submit(request(2))
    api.next().push(4, finish="length")
    recorder.wait_end(2)
    assert recorder.reason(2) == "length"


def test_what_tensorrt_llm_is_asked_for(start: Starter) -> None:
    engine, api, _ = start()
    params = SamplingParams(temperature=0.5, top_k=9, seed=11, logit_bias={4: -2.0}, min_p=0.1)
    named: dict[str, Any] = {"lora_name": "tuned", "logprobs": 0, "sampling": params}
    engine.submit(request(1, stop_token_ids=(7, 91, END), bad_words=((3, 4),), **named))
    output = api.next()
    asked = output.sampling
    assert output.prompt_token_ids == [1, 2, 3]
    assert output.lora == ADAPTER
    assert (asked.end_id, asked.pad_id, asked.stop_token_ids) == (END, 92, (7, 91))
    assert (asked.max_tokens, asked.bad_words, asked.logprobs) == (20, ((3, 4),), 0)
    assert (asked.params, asked.vocab_size) == (params, 100)


def test_the_prefix_cache_is_not_reset(start: Starter) -> None:
    engine, _, _ = start()
    with pytest.raises(PrefixCacheError, match="reload the model") as caught:
        engine.reset_prefix_cache()
    assert not caught.value.busy


def test_cached_tokens(start: Starter) -> None:
    engine, api, recorder = start()
    engine.submit(request(1))
    output = api.next()
    output.cached_tokens = 2
    output.push(4)
    recorder.wait_tokens(1)
    output.push(5, finish="length")
    recorder.wait_end(1)
    assert [delta.cached_tokens for delta in recorder.deltas(1)] == [2, 0]


def test_stats(start: Starter) -> None:
    engine, api, recorder = start(max_tokens_in_kv_cache=100)
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


def test_close_aborts_what_runs(start: Starter) -> None:
    engine, api, recorder = start()
    engine.submit(request(1))
    engine.submit(request(2))
    outputs = api.next_of(2)
    engine.close()
    assert all(output.aborted.is_set() for output in outputs)
    assert {recorder.reason(1), recorder.reason(2)} == {"cancelled"}


def test_close_from_the_listener(start: Starter) -> None:
    engine, api, recorder = start()
    recorder.after = lambda _: engine.close()
    engine.submit(request(1))
    api.next().push(4)
    recorder.wait_end(1)
    assert recorder.reason(1) == "cancelled"


def test_the_loop_runs_until_all_is_shut_down(start: Starter) -> None:
    """What was aborted has responses to come."""
    engine, api, recorder = start()
    assert api.llm is not None
    api.llm.hold.clear()
    engine.submit(request(1))
    output = api.next()
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
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, api, recorder = start()
    monkeypatch.setattr(engine_module, "CLOSE_S", 0.01)
    assert api.llm is not None
    api.llm.hold.clear()
    engine.submit(request(1))
    api.next()
    engine.close()
    recorder.wait_end(1)
    assert "does not shut down" in caplog.text
    monkeypatch.undo()


def test_a_shutdown_that_fails_is_logged(start: Starter, caplog: pytest.LogCaptureFixture) -> None:
    engine, api, _ = start()
    assert api.llm is not None
    api.llm.shutdown_error = RuntimeError("MPI has gone")
    with caplog.at_level(logging.ERROR):
        engine.close()
    assert "MPI has gone" in caplog.text


VARIANTS: list[tuple[str, Flow, dict[str, str]]] = [
    *((version, "tensorrt", {}) for version in VERSIONS),
    *((version, "pytorch", {}) for version in VERSIONS if version != "0.20.0"),
    ("1.2.1", "tensorrt", {"late_final": "1"}),
    ("1.2.1", "pytorch", {"late_final": "1", "step_tokens": "3"}),
]


@pytest.mark.parametrize(("version", "flow", "habits"), VARIANTS)
def test_every_version(version: str, flow: Flow, habits: dict[str, str], tmp_path: Path) -> None:
    """Over the fake package, with whatever habits the version and the flow have."""
    checkpoint = small_checkpoint(tmp_path / "tiny", vocab_size=100, eos_token_id=[END, 91])
    recorder = Recorder()
    with in_process(version, tokens="5,6,7,8,91,9", **habits) as api:
        folder = write_fake_engine(tmp_path / "1", checkpoint, flow, api, max_model_len=64, max_batch_size=4)
        engine = load(folder, load_manifest(folder), EngineSettings(), recorder, api=api)
        count = min(2, engine.info.max_logprobs)
        engine.submit(request(1, logprobs=count, stop_token_ids=(END, 91)))
        engine.submit(request(2, logprobs=0, stop_token_ids=()))
        engine.submit(request(3, stop_words=((7, 8),)))
        engine.submit(request(4, max_tokens=4))
        engine.submit(request(5, stop_token_ids=(6,)))
        recorder.wait_end(1, 2, 3, 4, 5)
        engine.close()
    assert engine.info.max_logprobs == (0 if flow == "pytorch" else 20)
    assert recorder.tokens == {
        1: [5, 6, 7, 8],
        2: ([5, 6, 7, 8, 91, 9] * 4)[:20],
        3: [5, 6, 7, 8],
        4: [5, 6, 7, 8],
        5: [5],
    }
    ends = {i: (end.finish_reason, end.stop_token_id) for i, end in recorder.ends.items()}
    assert ends == {1: ("stop", 91), 2: ("length", None), 3: ("stop", None), 4: ("length", None), 5: ("stop", 6)}
    for delta in (*recorder.deltas(1), *recorder.deltas(2)):
        assert (delta.logprobs is None) == (not delta.token_ids)
        assert delta.logprobs is None or {len(ids) for ids in delta.logprobs.top_token_ids} == {
            count if delta.request_id == 1 else 0
        }
    assert recorder.breaches == []


@pytest.mark.parametrize("flow", ["tensorrt", "pytorch"])
def test_a_grammar(flow: Flow, tmp_path: Path, tokenizer_dir: Path) -> None:
    """Over the fake package, which holds the output to it."""
    tokenizer = tiny_tokenizer()
    end = tokenizer.token_to_id("<|im_end|>")
    checkpoint = small_checkpoint(tmp_path / "tiny", vocab_size=TINY_VOCAB_SIZE, eos_token_id=end)
    recorder = Recorder()
    with in_process(tokens="1,2,3") as api:
        folder = write_fake_engine(tmp_path / "1", checkpoint, flow, api, max_model_len=64, max_batch_size=4)
        shutil.copytree(tokenizer_dir, folder / "tokenizer")
        settings = EngineSettings(guided_decoding_backend="xgrammar")
        engine = load(folder, load_manifest(folder), settings, recorder, api=api)
        grammar = Grammar(kind="regex", text="[0-9]{3}x")
        engine.submit(request(1, grammar=grammar, stop_token_ids=(end,)))
        engine.submit(request(2, grammar=Grammar(kind="lark", text="start: /a/")))
        recorder.wait_end(1, 2)
        engine.close()
    assert re.fullmatch("[0-9]{3}x", tokenizer.decode(recorder.tokens[1]))
    assert (recorder.reason(1), recorder.ends[1].stop_token_id) == ("stop", end)
    assert "grammar of the kind lark is not supported" in (recorder.ends[2].error or "")
    assert recorder.breaches == []


@pytest.mark.parametrize(("version", "others"), [("0.20.0", "length"), ("1.0.0", "error"), ("1.1.0", "error")])
def test_a_rank_that_refuses_a_request(version: str, others: str, tmp_path: Path) -> None:
    """Over the fake package: 0.20 goes on, later versions shut themselves down."""
    recorder, switch = Recorder(), tmp_path / "failure"
    with in_process(version, tokens="5,6,7", fail_file=str(switch), step_delay_ms="1") as api:
        engine = small_engine(tmp_path, api, recorder, "tensorrt")
        engine.submit(request(1, max_tokens=60, stop_token_ids=()))
        recorder.wait_tokens(1)
        switch.write_text("submit:no room for the adapter")
        engine.submit(request(2))
        recorder.wait_end(2)
        switch.unlink()
        engine.submit(request(3, max_tokens=2))
        recorder.wait_end(1, 3)
        engine.close()
    assert recorder.reason(2) == "error"
    assert {recorder.reason(1), recorder.reason(3)} == {others}
    assert recorder.breaches == []


@pytest.mark.parametrize(
    ("version", "what"),
    [
        *itertools.product(["0.20.0", "1.0.0", "1.2.1"], ["serve:fatal", "serve:silent"]),
        *((version, "submit:no room") for version in ("1.0.0", "1.2.1")),  # 0.20 goes on
    ],
)
def test_an_executor_that_dies_under_load(
    version: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the fake package: all that lives fails, and so does what comes later."""
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    recorder, switch = Recorder(), tmp_path / "failure"
    with in_process(version, tokens="5,6,7,8", fail_file=str(switch), step_delay_ms="1") as api:
        engine = small_engine(tmp_path, api, recorder, "tensorrt" if version == "0.20.0" else "pytorch")
        for i in range(40):
            engine.submit(request(i, max_tokens=60, stop_token_ids=()))
        recorder.wait_tokens(0)
        switch.write_text(what)
        for i in range(40, 80):
            engine.submit(request(i))
        recorder.wait_end(*range(80))
        engine.submit(request(80))
        recorder.wait_end(80)
        left = engine.stats()
        engine.close()
    assert recorder.breaches == []
    assert {recorder.ends[i].error for i in range(4, 81)} <= {ENGINE_FAILED, None}
    assert {recorder.ends[i].error for i in range(40, 81)} == {ENGINE_FAILED}
    assert (left.running, left.waiting) == (0, 0)


def test_memory_does_not_grow(tmp_path: Path) -> None:
    """Ends are counted; nothing else of a request is kept."""
    ended = threading.Semaphore(0)

    def count(deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            if delta.finish_reason is not None:
                ended.release()

    with in_process(tokens="5,6,7,8") as api:
        engine = small_engine(tmp_path, api, count, "tensorrt", max_batch_size=16)

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
    # A hundred bytes a request would be 200 kB.
    assert grown < 150_000


def small_engine(folder: Path, api: Any, recorder: Any, flow: Flow, max_batch_size: int = 4) -> TrtLlmEngine:
    """An engine of the fake's without weights."""
    checkpoint = small_checkpoint(folder / "tiny", vocab_size=100)
    version_dir = write_fake_engine(
        folder / "1", checkpoint, flow, api, max_model_len=64, max_batch_size=max_batch_size
    )
    engine = load(version_dir, load_manifest(version_dir), EngineSettings(), recorder, api=api)
    assert isinstance(engine, TrtLlmEngine)
    return engine


def test_adapters_that_come_and_go(start: Starter, tmp_path: Path) -> None:
    engine, api, recorder = start()
    folder = make_adapter(tmp_path / "adapter")
    with pytest.raises(LoraError, match="the adapter changes up_proj, and this engine was set up for q_proj"):
        engine.load_lora("new", str(make_adapter(tmp_path / "other", module="mlp.up_proj")))
    engine.load_lora("new", str(folder))
    assert engine.info.lora_names == ("tuned", "new")
    with pytest.raises(LoraError, match="holds 2 adapters at a time"):
        engine.load_lora("newer", str(folder))
    engine.submit(request(1, lora_name="new"))
    running = api.next()
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
        engine.submit(request(request_id, lora_name="new"))
        assert api.next().lora == LoraAdapter("new", folder, number)
        engine.unload_lora("new")
        make_adapter(folder, rank=3)
    with pytest.raises(LoraError, match="no adapter is called newer"):
        engine.unload_lora("newer")


def test_kv_events_are_vllms(start: Starter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A block of three of a prompt's is not full; the first two come with their parents, and go one by one."""
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    endpoints = (f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    engine, api, recorder = start(kv_events=KvEventPublisher(KvEventsConfig(*endpoints)))
    consumer = Consumer(*endpoints)

    numbers = itertools.count(1)

    def tell(*told: dict[str, Any]) -> None:
        # Some of TensorRT-LLM's versions give the text, and null where there is nothing.
        api.kv_events += ["null", None, *({"event_id": n, "data": data} for n, data in enumerate(told))]
        number = next(numbers)
        engine.submit(request(number))
        api.next().push(4, finish="length")
        recorder.wait_end(number)

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
