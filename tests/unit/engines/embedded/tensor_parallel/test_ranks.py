"""An engine on two ranks, beside one that has the model alone."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs

from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import EngineLoadError, load_manifest, write_manifest
from openai_bls.engines.embedded import model_loader
from openai_bls.engines.embedded.fp8_layers import FP8
from openai_bls.engines.embedded.runner_choice import RunnerChoice
from openai_bls.engines.embedded.tensor_parallel import ranks
from openai_bls.engines.registry import create_engine
from tests.unit.engines.embedded.gpu.test_paged_attention import ReplayingRunner
from tests.unit.engines.embedded.tensor_parallel import gpu_follower
from tests.unit.engines.embedded.test_engine import PROMPTS, run_all
from tests.unit.engines.embedded.test_speculation import answers, check, varied, with_prediction
from tests.unit.engines.engine_support import GREEDY, Recorder, request

if TYPE_CHECKING:
    from tests.unit.engines.conftest import EngineFactory


@pytest.fixture(scope="module")
def shared_dir(version_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of `version_dir`, for two ranks and with no self-test of its own."""
    folder = tmp_path_factory.mktemp("shared") / "tensorrt_llm" / "1"
    shutil.copytree(version_dir, folder)
    write_manifest(
        folder, msgspec.structs.replace(load_manifest(folder), tensor_parallel_size=2, self_test=None, max_batch_size=4)
    )
    return folder


@pytest.fixture(scope="module")
def shared(shared_dir: Path) -> Iterator[tuple[Any, Recorder]]:
    """As on a GPU; tests/triton has an engine on two ranks as it is on a CPU."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_FOLLOWER", gpu_follower.__name__)
        gpu_follower.as_on_a_gpu(patch)
        engine: Any = create_engine(shared_dir, recorder, {"num_threads": "1", "max_num_tokens": "64", "speculative_method": "ngram"})
        assert isinstance(engine._batcher.processor.inputs_and_outputs, ContinuousBatchingAsyncIOs)
        yield engine, recorder
    assert ReplayingRunner.replayed > ReplayingRunner.captured
    engine.close()
    assert recorder.breaches == []


def test_answers_are_those_of_one_rank(shared: tuple[Any, Recorder], start: EngineFactory) -> None:
    """Greedy and sampled, more sequences than fit a batch; the second time with prefixes in the cache."""
    engine, recorder = shared
    alone, beside = start()
    first = 0
    for sampling in (GREEDY, SamplingParams(temperature=0.8, top_p=0.9, seed=7)):
        wanted = run_all(alone, beside, PROMPTS, sampling, first)
        assert run_all(engine, recorder, PROMPTS, sampling, first) == wanted
        first += len(PROMPTS)
    assert engine.self_test.attention == alone.self_test.attention  # type: ignore[attr-defined]


def test_passes_over_prompts(shared: tuple[Any, Recorder], start: EngineFactory) -> None:
    """Log-probabilities of a prompt, and its embedding, which are no steps."""
    engine, recorder = shared
    alone, beside = start()
    asked = [
        request(900, prompt=PROMPTS[5], prompt_logprobs=2, logprobs=2),
        request(901, prompt=PROMPTS[6], pooling="mean", max_tokens=0),
    ]
    for one, heard in ((engine, recorder), (alone, beside)):
        for what in asked:
            one.submit(what)
        heard.wait_end(900, 901)
    ours, theirs = recorder.deltas(900)[0].prompt_logprobs, beside.deltas(900)[0].prompt_logprobs
    assert ours is not None
    assert theirs is not None
    assert ours.top_token_ids == theirs.top_token_ids
    assert ours.token_logprobs == pytest.approx(theirs.token_logprobs, abs=1e-3)
    assert recorder.ends[901].embedding == pytest.approx(beside.ends[901].embedding, abs=1e-4)


def test_drafts(shared: tuple[Any, Recorder], start: EngineFactory) -> None:
    """Rank 0 alone drafts, samples at every row and takes back; wrong drafts, and sequences cancelled between two."""
    engine, recorder = shared
    alone, beside = start()
    usual = run_all(alone, beside, [PROMPTS[5]])[0]
    asked = [msgspec.structs.replace(one, request_id=600 + one.request_id) for one in varied(usual)]
    for one in asked:
        alone.submit(one)
    beside.wait_end(*(one.request_id for one in asked))
    wanted = answers(beside, asked)
    before = engine.stats()
    for first in range(0, len(asked), 4):  # as many as the batch has room for
        group = asked[first : first + 4]
        dropped = request(700 + first, prompt=PROMPTS[6], max_tokens=300)
        engine.submit(dropped)
        for one, answer in zip(group, wanted[first:], strict=False):
            engine.submit(with_prediction(one, [*answer.tokens, *usual[len(answer.tokens) :]], wrong_at=(4, 13)))
        recorder.wait_tokens(dropped.request_id)
        engine.cancel(dropped.request_id)
        recorder.wait_end(dropped.request_id, *(one.request_id for one in group))
    check(recorder, asked, wanted)
    after = engine.stats()
    accepted, drafted = (
        getattr(after, name) - getattr(before, name) for name in ("accepted_draft_tokens", "draft_tokens")
    )
    assert drafted > accepted > 100


def test_a_rank_that_hangs_ends_the_engine(shared: tuple[Any, Recorder], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, recorder = shared
    ended = threading.Event()
    monkeypatch.setattr(ranks, "end_process", ended.set)
    (process,) = engine._ranks._processes
    engine.submit(request(950, max_tokens=500))
    recorder.wait_tokens(950)
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(ranks, "HANG_SECONDS", 0.2)
    recorder.wait_end(950)
    assert recorder.reason(950) == "error"
    assert ended.wait(60)
    assert process.poll() == -signal.SIGKILL
    assert engine.stats().failed
    engine.submit(request(951))
    recorder.wait_end(951)
    assert recorder.reason(951) == "error"


def test_weights_and_cache_in_fp8(
    shared_dir: Path, tmp_path: Path, start: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drafts; answers are those of one rank, whose keys and values round alike."""
    monkeypatch.setattr(ranks, "_FOLLOWER", gpu_follower.__name__)
    gpu_follower.as_on_a_gpu(monkeypatch)
    choice = RunnerChoice("continuous_batching", "paged", "tried", kv_cache_dtype="fp8")
    monkeypatch.setattr(model_loader, "choices", lambda *_: [choice])
    found = []
    for size in (1, 2):
        folder = tmp_path / str(size)
        shutil.copytree(shared_dir, folder)
        manifest = msgspec.structs.replace(load_manifest(folder), tensor_parallel_size=size, quant="fp8")
        write_manifest(folder, manifest)
        engine, recorder = start(folder, speculative_method="ngram")
        found.append(run_all(engine, recorder, PROMPTS))
        caches = engine._batcher.processor.cache.layer_to_allocator[1].get_cache_for_block_table(1)
        assert [(cache.dtype, cache.shape[2]) for cache in caches] == [(FP8, 2 // size)] * 2
        assert engine.self_test.kv_cache_dtype == "fp8"
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"lora": {"max_loras": 1, "max_lora_rank": 8}}, {}, "has no adapters: build without --max-loras"),
        ({}, {"runner": "dynamic_cache"}, "there is no runner dynamic_cache"),
        ({"tensor_parallel_size": 3}, {}, "3 GPUs do not divide its 4 attention heads"),
    ],
)
def test_refusals(shared_dir: Path, tmp_path: Path, changes: Any, options: dict[str, str], said: str) -> None:
    folder = tmp_path / "1"
    shutil.copytree(shared_dir, folder)
    manifest = msgspec.to_builtins(load_manifest(folder)) | changes
    write_manifest(folder, msgspec.convert(manifest, type(load_manifest(folder))))
    with pytest.raises(EngineLoadError, match=said):
        create_engine(folder, Recorder(), {"num_threads": "1"} | options)


def test_a_rank_that_does_not_load(shared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_FOLLOWER", "openai_bls.no_such_module")
    with pytest.raises(EngineLoadError, match="this model cannot be served on 2 GPUs: rank 1 has ended"):
        create_engine(shared_dir, Recorder(), {"num_threads": "1"})
