"""The last layer computes what follows attention for the rows alone whose logits are wanted; answers stay the same."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls_transformers.gpu import paged_attention
from openai_bls_transformers.gpu.paged_attention import LongPrompt
from openai_bls_transformers.model import fused_layers
from openai_bls_transformers.model.lora_layers import LoraLayers
from openai_bls_transformers.runners import cuda_graph_runner
from tests.engine_contract.support import request
from tests_transformers.engine.adapters import EVERYTHING, Reference, make_adapter, with_adapters
from tests_transformers.engine.arrivals import run_together
from tests_transformers.engine.engine.test_engine import COUNT, PROMPTS, expected, generate, model
from tests_transformers.engine.gpu import reference_kernels
from tests_transformers.engine.gpu.test_paged_attention import StartPaged, kernels, processor_of, start_with
from tests_transformers.engine.model.test_fused_layers import model as other_model
from tests_transformers.engine.overlapping import overlap

__all__ = ["expected", "kernels", "model", "other_model", "start_with"]  # fixtures

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows of each step with prompts in the two layers' feed-forward parts."""
    found: list[tuple[int, int]] = []
    fuse = fused_layers.fuse

    def watched(model: Any) -> Any:
        counts = fuse(model)
        first, last = (layer.mlp for layer in model.model.layers)
        seen = [0]
        first.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
        last.register_forward_pre_hook(lambda _, args: found.append((seen.pop(), args[0].shape[1])))
        return counts

    monkeypatch.setattr(fused_layers, "fuse", watched)
    return found


@pytest.mark.parametrize("way", ["in turn", "overlapping", "replayed", "long prompts", "beyond graphs"])
def test_answers(
    start_with: StartPaged,
    expected: list[list[int]],
    rows: list[tuple[int, int]],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "overlapping":
        overlap(monkeypatch)
    if way in ("long prompts", "beyond graphs"):
        monkeypatch.setattr(paged_attention, "_LONG_PROMPT", 8)
    if way == "beyond graphs":
        monkeypatch.setattr(cuda_graph_runner, "_LADDER", (1, 2, 4, 8, 16, 32))
    padded = way in ("replayed", "beyond graphs")
    engine, recorder = start_with("paged", replayed=padded, fused=True, max_num_tokens="64")
    rows.clear()
    requests = [request(i, prompt, max_tokens=COUNT) for i, prompt in enumerate(PROMPTS)]
    assert run_together(engine, recorder, requests) == expected
    assert ("prompt" in reference_kernels.calls) == (way in ("long prompts", "beyond graphs"))
    most = processor_of(engine).cb_config.max_requests_per_batch
    narrowed = [last for tokens, last in rows if tokens > most]
    assert narrowed
    if way == "replayed":
        assert set(narrowed) == {most}
    if way == "beyond graphs":
        assert {last for tokens, last in rows if tokens > 32} < {1, 2, 4, 8, 16}


def test_drafts_beside_a_prompt(
    start_with: StartPaged, model: Any, expected: list[list[int]], rows: list[tuple[int, int]]
) -> None:
    """A row for each of their tokens."""
    engine, recorder = start_with("paged", fused=True, max_num_tokens="64", speculative_method="ngram")
    rows.clear()
    long = [i % 250 for i in range(400)]
    drafted = [request(i, PROMPTS[i], max_tokens=COUNT, prediction=tuple(expected[i])) for i in range(2)]
    found = run_together(engine, recorder, [*drafted, request(2, long, max_tokens=COUNT)])
    assert found == [*expected[:2], generate(model, long, COUNT)]
    assert engine.stats().accepted_draft_tokens > COUNT
    assert any(2 < last < tokens for tokens, last in rows)


def test_adapters(
    start_with: StartPaged,
    checkpoint: Path,
    version_dir: Path,
    tmp_path: Path,
    rows: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that are kept keep their adapters."""
    # A captured graph runs all of its operations, whatever a step holds.
    monkeypatch.setattr(LoraLayers, "_always", property(lambda self: True, lambda self, value: None), raising=False)
    folder = make_adapter(checkpoint, tmp_path / "adapter", **EVERYTHING)
    reference = Reference(checkpoint, {"all": folder})
    version_dir = with_adapters(version_dir, tmp_path / "engine", {"all": folder}, max_loras=2, max_lora_rank=8)
    engine, recorder = start_with("paged", replayed=True, fused=True, folder=version_dir, max_num_tokens="64")
    rows.clear()
    places = list(itertools.product(PROMPTS[:4], (None, "all")))
    requests = [request(n, prompt, max_tokens=6, lora_name=name) for n, (prompt, name) in enumerate(places)]
    assert run_together(engine, recorder, requests) == [reference.greedy(name, prompt, 6)[0] for prompt, name in places]
    assert any(last < tokens for tokens, last in rows)


@pytest.mark.parametrize("different", [None, "rms_norm", "rotary"])
def test_layers_that_are_not_fused_keep_all_rows(other_model: Any, kernels: Any, different: str | None) -> None:
    if different is not None:
        setattr(kernels, different, lambda x, *more: (x, more[0]) if different == "rotary" else x)
    fused_layers.fuse(other_model)
    assert fused_layers.narrows(other_model) == (different is None)


@settings(deadline=None)
@given(queries=st.integers(1, 40), past=st.integers(0, 40), first=st.integers(0, 5), count=st.integers(1, 50))
def test_last_queries_of_a_prompt(queries: int, past: int, first: int, count: int) -> None:
    """Attention of them alone is that of them among all."""
    torch.manual_seed(0)
    prompt = LongPrompt(first_query=first, queries=queries, first_key=3, keys=past + queries)
    last = prompt.last(count)
    q, k = torch.randn(first + queries, 2, 4), torch.randn(past + queries, 1, 4)
    whole, part = (
        reference_kernels.causal(q[one.first_query : one.first_query + one.queries], k, k, 0.5)
        for one in (prompt, last)
    )
    assert (last.queries, last.first_key, last.keys) == (min(queries, count), 3, past + queries)
    torch.testing.assert_close(part, whole[-last.queries :])
