"""The engine over the fake package, with the habits of every version and flow."""

from __future__ import annotations

import gc
import itertools
import re
import shutil
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine_types import Grammar, TokenDelta
from openai_bls.core.manifest import load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_tensorrt_llm import health_watch
from openai_bls_tensorrt_llm.engine import TrtLlmEngine
from openai_bls_tensorrt_llm.installed.interface import Flow
from openai_bls_tensorrt_llm.loading import load
from tests.engine_contract.support import Recorder
from tests.unit.core_support import VOCAB_SIZE as TINY_VOCAB_SIZE
from tests.unit.core_support import tiny_tokenizer
from tests_tensorrt_llm.engine.fake_engines import write_fake_engine
from tests_tensorrt_llm.engine.fake_support import VERSIONS, in_process, small_checkpoint
from tests_tensorrt_llm.engine.scripted_api import END, request

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
    assert "grammar of the kind lark" in (recorder.ends[2].error or "")
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
