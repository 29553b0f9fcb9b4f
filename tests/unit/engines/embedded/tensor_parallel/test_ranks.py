"""An engine on two ranks, beside one that has the model alone."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from safetensors.torch import load_file, save_file
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs

from openai_bls.core.engine import LoraError
from openai_bls.core.engine_types import Grammar, SamplingParams
from openai_bls.core.manifest import EngineLoadError, LoraSettings, load_manifest, write_manifest
from openai_bls.engines.embedded.draft_budget import Account
from openai_bls.engines.embedded.tensor_parallel import ranks
from openai_bls.engines.registry import create_engine
from tests.unit.engines.embedded.adapters import EVERYTHING, make_adapter, with_adapters
from tests.unit.engines.embedded.gpu.test_paged_attention import ReplayingRunner
from tests.unit.engines.embedded.tensor_parallel import gpu_follower
from tests.unit.engines.embedded.test_engine import PROMPTS, run_all
from tests.unit.engines.embedded.test_speculation import answers, check, varied, with_prediction
from tests.unit.engines.engine_support import GREEDY, Recorder, request

if TYPE_CHECKING:
    from tests.unit.engines.conftest import EngineFactory


class EndedProcess(subprocess.Popen[bytes]):
    """A process that has ended when it is there, as on a busy machine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wait()


ROOM = LoraSettings(max_loras=1, max_lora_rank=6)


@pytest.fixture(scope="module")
def shared_dir(version_dir: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of `version_dir` for two ranks, with a tokenizer, a draft model, and room for an adapter."""
    folder = tmp_path_factory.mktemp("shared") / "tensorrt_llm" / "1"
    shutil.copytree(version_dir, folder)
    for name in ("tokenizer", "draft"):
        shutil.copytree(checkpoint, folder / name)
    changes: dict[str, Any] = {"self_test": None, "max_batch_size": 4, "lora": ROOM, "draft_checkpoint": "draft"}
    write_manifest(folder, msgspec.structs.replace(load_manifest(folder), tensor_parallel_size=2, **changes))
    return folder


@pytest.fixture(scope="module")
def shared(shared_dir: Path) -> Iterator[tuple[Any, Recorder]]:
    """As on a GPU; tests/triton has an engine on two ranks as it is on a CPU."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_FOLLOWER", gpu_follower.__name__)
        gpu_follower.as_on_a_gpu(patch)
        engine: Any = create_engine(shared_dir, recorder, {"num_threads": "1", "max_num_tokens": "64"})
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


def test_drafts(
    shared: tuple[Any, Recorder],
    shared_dir: Path,
    tmp_path: Path,
    start: EngineFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 alone drafts, by a draft model too, and takes back; wrong drafts, and sequences cancelled between two."""
    monkeypatch.setattr(Account, "is_overdrawn", False)  # a draft model as large as the model costs more than it brings
    engine, recorder = shared
    shutil.copytree(shared_dir, tmp_path / "1")
    write_manifest(tmp_path / "1", msgspec.structs.replace(load_manifest(shared_dir), tensor_parallel_size=1))
    alone, beside = start(tmp_path / "1", speculative_method="none")
    usual = run_all(alone, beside, [PROMPTS[5]])[0]
    asked = [msgspec.structs.replace(one, request_id=600 + one.request_id) for one in varied(usual)]
    asked.append(request(650, prompt=PROMPTS[5], max_tokens=24, grammar=Grammar("regex", "(ab|cd){9}[a-f]{12}")))
    for one in asked:
        alone.submit(one)
    beside.wait_end(*(one.request_id for one in asked))
    wanted = answers(beside, asked)
    assert not any(answer.end.error for answer in wanted)
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
    engine.submit(msgspec.structs.replace(asked[0], request_id=660))
    recorder.wait_end(660)
    assert recorder.tokens[660] == wanted[0].tokens
    assert engine.stats().accepted_draft_tokens - after.accepted_draft_tokens > 12, "the draft model is the model"


def test_an_adapter(
    shared: tuple[Any, Recorder], checkpoint: Path, version_dir: Path, tmp_path: Path, start: EngineFactory
) -> None:
    """In one batch with the base model, over prompts alone, and with drafts; each rank adds its part."""
    folder = make_adapter(checkpoint, tmp_path / "adapter", **EVERYTHING)
    room = {"max_loras": ROOM.max_loras, "max_lora_rank": ROOM.max_lora_rank}
    alone, beside = start(with_adapters(version_dir, tmp_path / "alone", {"one": folder}, **room))
    engine, recorder = shared
    engine.load_lora("one", str(folder))
    asked = [
        request(800 + i, prompt=PROMPTS[i], max_tokens=24, logprobs=0, lora_name="one" if i % 2 else None)
        for i in range(4, 8)
    ]
    asked += [
        request(810, prompt=PROMPTS[6], max_tokens=0, pooling="last", lora_name="one"),
        request(811, prompt=PROMPTS[6], prompt_logprobs=0, lora_name="one"),
    ]
    for one, heard in ((alone, beside), (engine, recorder)):
        for what in asked:
            one.submit(what)
        heard.wait_end(*(what.request_id for what in asked))
    wanted = answers(beside, asked[:4])
    check(recorder, asked[:4], wanted)
    assert recorder.ends[810].embedding == pytest.approx(beside.ends[810].embedding, abs=1e-4)
    ours, theirs = (heard.deltas(811)[0].prompt_logprobs for heard in (recorder, beside))
    assert ours is not None
    assert theirs is not None
    assert ours.token_logprobs == pytest.approx(theirs.token_logprobs, abs=1e-3)
    again = with_prediction(msgspec.structs.replace(asked[1], request_id=820), wanted[1].tokens, wrong_at=(7,))
    engine.submit(again)
    recorder.wait_end(820)
    assert recorder.tokens[820] == wanted[1].tokens
    engine.unload_lora("one")
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    weights = load_file(half / "adapter_model.safetensors")
    path = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
    save_file(weights | {path: weights[path][:, :64].contiguous()}, half / "adapter_model.safetensors")
    with pytest.raises(LoraError, match="down_proj has 64 inputs and 64 outputs there, 128 and 64 here"):
        engine.load_lora("half", str(half))


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


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
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


@pytest.mark.parametrize("when", ["while rank 0 loads", "before it is told to load"])
def test_a_rank_that_does_not_load(shared_dir: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(ranks, "_FOLLOWER", "openai_bls.no_such_module")
    if when == "before it is told to load":
        monkeypatch.setattr(subprocess, "Popen", EndedProcess)
    with pytest.raises(EngineLoadError, match="this model cannot be served on 2 GPUs: rank 1 has ended"):
        create_engine(shared_dir, Recorder(), {"num_threads": "1"})
