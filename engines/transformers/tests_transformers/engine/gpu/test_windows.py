"""Layers with windows, caps and sinks under paged attention: tiny models against transformers' `generate`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.gemma3 import modeling_gemma3

from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.engines.registry import create_engine
from openai_bls_transformers import gpu
from openai_bls_transformers.attention_spec import PLAIN, Scoring
from openai_bls_transformers.gpu import paged_attention
from openai_bls_transformers.model import fused_layers
from openai_bls_transformers.runners import preparation
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from openai_bls_transformers.runners.scheduler import supports_fast_path
from openai_bls_transformers.speculation.draft_budget import DraftBudget
from tests.engine_contract.support import Recorder, request, run_all
from tests_transformers.architectures.checkpoint import MAX_LENGTH, WINDOW, make_checkpoint
from tests_transformers.architectures.comparison import answers, difference, expected, prompts, requests
from tests_transformers.architectures.table import CASES
from tests_transformers.engine.gpu import reference_kernels
from tests_transformers.engine.model.test_fused_layers import kernels
from tests_transformers.engine.speculation import test_speculation

__all__ = ["kernels"]  # fixtures

ROTATION_OF_GEMMA = modeling_gemma3.apply_rotary_pos_emb
MODELS = ["gemma2", "gemma3_text", "gpt_oss", "mistral", "olmo3", "qwen2"]


@pytest.fixture
def on_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuous batching with paged attention on a CPU."""
    monkeypatch.setitem(sys.modules, "openai_bls_transformers.gpu.attention_kernels", reference_kernels)
    monkeypatch.setattr(gpu, "attention_kernels", reference_kernels, raising=False)
    monkeypatch.setitem(sys.modules, "openai_bls_transformers.gpu.prompt_attention", reference_kernels)
    monkeypatch.setattr(gpu, "prompt_attention", reference_kernels, raising=False)
    choice = RunnerChoice("continuous_batching", "paged", "tried")
    monkeypatch.setattr(preparation, "choices", lambda *_, **__: [choice])
    monkeypatch.setattr(preparation, "set_attention", lambda model, *_: paged_attention.use(model, "paged"))


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    case = CASES[request.param]
    windows = {"max_window_layers": 0} if request.param == "qwen2" else {}
    make_checkpoint(tmp_path / "checkpoint", case.model_type, {**case.changes, **windows}, case.seed)
    return tmp_path / "checkpoint"


def started(checkpoint: Path, **options: str) -> Iterator[tuple[Any, Recorder]]:
    manifest = Manifest(
        engine="transformers",
        model_name="tiny",
        max_model_len=MAX_LENGTH,
        max_batch_size=4,
        created=1,
        checkpoint=str(checkpoint),
    )
    (checkpoint / "1").mkdir(exist_ok=True)
    write_manifest(checkpoint / "1", manifest)
    recorder = Recorder()
    engine: Any = create_engine(checkpoint / "1", recorder, {"num_threads": "1", "max_num_tokens": "32"} | options)
    yield engine, recorder
    engine.close()


@pytest.mark.usefixtures("on_paged")
def test_answers_with_windows(checkpoint: Path) -> None:
    """Prompts in pieces, beside others that decode by page tables; and from pages of the prefix cache."""
    wanted = expected(checkpoint)
    for engine, recorder in started(checkpoint):
        cache = engine._batcher._manager.batch_processor.cache
        assert supports_fast_path(cache)
        reference_kernels.calls.clear()  # the self-test's
        for first in (0, 100):
            found = answers(engine, recorder, requests(first))
            assert [difference(*pair) for pair in zip(found, wanted, strict=True)] == [""] * len(wanted)
        assert set(reference_kernels.calls) == {"decode", "mixed"}
        assert max(recorder.deltas(100 + i)[0].cached_tokens for i in range(len(wanted))) > 0
        assert WINDOW in {layer.window for layer in cache._openai_bls_layers.values()}


@pytest.mark.usefixtures("on_paged", "kernels")
@pytest.mark.parametrize("checkpoint", ["gemma3_text", "gpt_oss"], indirect=True)
def test_answers_of_fused_layers(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and sinks go with the step; gpt-oss gives angles for half of a head."""

    def set_attention(model: Any, *_: Any) -> None:
        paged_attention.use(model, "paged")
        layers = model.config.num_hidden_layers
        found = fused_layers.fuse(model)
        assert (found["attentions"], found["adds"]) == (layers, layers)

    monkeypatch.setattr(modeling_gemma3, "apply_rotary_pos_emb", ROTATION_OF_GEMMA)  # `fuse` sets it
    # The interpreter chooses experts token by token; test_fused_experts.py holds that routers choose the same.
    monkeypatch.setattr(fused_layers, "fuse_router", lambda module: 0)
    monkeypatch.setattr(preparation, "set_attention", set_attention)
    wanted = expected(checkpoint)
    for engine, recorder in started(checkpoint):
        reference_kernels.calls.clear()
        found = answers(engine, recorder, requests())
        assert [difference(*pair) for pair in zip(found, wanted, strict=True)] == [""] * len(wanted)
        assert set(reference_kernels.calls) == {"rotate and decode", "mixed"}


@pytest.mark.usefixtures("on_paged")
@pytest.mark.parametrize("checkpoint", ["gemma2", "gpt_oss", "mistral"], indirect=True)
def test_drafts_with_windows(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind a window is there when a draft is rejected: answers are those without drafts."""
    monkeypatch.setattr(DraftBudget, "is_overdrawn", False)
    asked = [request(i, prompt=prompt, max_tokens=40, logprobs=2) for i, prompt in enumerate(prompts())]
    for engine, recorder in started(checkpoint):
        run_all(engine, recorder, asked)
        wanted = test_speculation.answers(recorder, asked)
    for engine, recorder in started(checkpoint, speculative_method="ngram"):
        predicted = [
            test_speculation.with_prediction(one, answer.tokens, wrong_at=range(i, 40, 5 + i))
            for i, (one, answer) in enumerate(zip(asked, wanted, strict=True))
        ]
        run_all(engine, recorder, predicted)
        test_speculation.check(recorder, asked, wanted)
        drafted, right = test_speculation.accepted(engine)
        assert 40 < right < drafted - 20


LAYER = paged_attention._Layer(torch.empty(0), torch.empty(0), group=0, page_size=32, window=8)


@pytest.mark.parametrize(
    ("window", "asked", "scoring"),
    [
        (0, {}, PLAIN),
        (0, {"sliding_window": 8, "softcap": None}, PLAIN),  # the kind of layer counts
        (8, {}, Scoring(8)),
        (8, {"sliding_window": 8}, Scoring(8)),
        (0, {"softcap": 30.0}, Scoring(cap=30.0)),
    ],
)
def test_scoring_of_a_layer(window: int, asked: dict[str, Any], scoring: Scoring) -> None:
    layer = dataclasses.replace(LAYER, window=window)
    assert paged_attention._scoring(layer, SimpleNamespace(layer_idx=1), 4, asked) == scoring


@pytest.mark.parametrize(
    ("asked", "reason"),
    [({"sliding_window": 7}, "layer 1 .* 8 .* 7"), ({"s_aux": torch.zeros(4, 1)}, r"\(4, 1\) for 4 heads")],
)
def test_what_contradicts_the_configuration(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        paged_attention._scoring(LAYER, SimpleNamespace(layer_idx=1), 4, asked)


@pytest.mark.parametrize(("pages", "window"), [(0, 64), (1, 0), (2, 0), (3, 64)])
def test_a_window_that_no_sequence_reaches(pages: int, window: int) -> None:
    config = SimpleNamespace(num_hidden_layers=1, sliding_window=64)
    allocator = SimpleNamespace(index=0, get_cache_for_block_table=lambda _: torch.empty(2, 4, 32, 2, 16))
    cache = SimpleNamespace(max_blocks_per_request=pages, layer_to_allocator=[allocator])
    assert paged_attention._layer(cache, SimpleNamespace(layer_idx=0, config=config)).window == window
