"""Executors that die, stall or tell statistics, as the watch over TensorRT-LLM finds them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_tensorrt_llm import health_watch
from tests_tensorrt_llm.engine.scripted_api import (
    PATIENCE_S,
    RequestError,
    ScriptedApi,
    ScriptedOutput,
    Starter,
    request,
)


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
    scripted: Starter, death: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01 if death == "found by the watch" else 3600.0)
    engine, api, recorder = scripted()
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
    scripted: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a rank on another machine that is killed: all else looks well."""
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    world = scripted()
    recorder, output = world.recorder, world.begin(1)
    output.push(4)
    recorder.wait_tokens(1)
    monkeypatch.setattr(health_watch, "STALL_S", 0.0)
    recorder.wait_end(1)
    assert recorder.ends[1].error == ENGINE_FAILED
    assert world.engine.stats().failed
    assert output.aborted.is_set()
    assert caplog.text.count("no step") == 1


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
    scripted: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Health checks ask for the engine's state, and not for tokens."""
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    engine, api, recorder = scripted()
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


def test_statistics_are_thrown_away_while_requests_run(scripted: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    world = scripted()
    assert not world.api.discarded.acquire(timeout=0.1)
    output = world.begin(1)
    for _ in range(3):
        assert world.api.discarded.acquire(timeout=PATIENCE_S)
    output.push(4, finish="length")
    world.recorder.wait_end(1)


def test_statistics_that_cannot_be_thrown_away(
    scripted: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_watch, "WATCH_S", 0.01)
    world = scripted()
    world.api.discard_error = AssertionError("not properly instantiated")
    output = world.begin(1)
    assert world.api.discarded.acquire(timeout=PATIENCE_S)
    output.push(4, finish="length")
    world.recorder.wait_end(1)
    world.engine.close()
    assert caplog.text.count("cannot be thrown away") == 1
