"""Ordinary passes over prompts: a model's log-probabilities a slice at a time, whatever its head can do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from openai_bls_transformers.model import prompt_forward
from tests.engine_contract.support import VOCAB_SIZE, request
from tests.prompt_logprobs import unpacked

PROMPT = [5, 6, 7, 300, 2, 2, 9, 511, 40, 41, 42]


class Capped(Qwen2ForCausalLM):  # type: ignore[misc]
    """Caps its logits, and makes them for all tokens that its base speaks of."""

    rows: list[int]

    @classmethod
    def _supports_logits_to_keep(cls) -> bool:
        return False

    def forward(self, input_ids: torch.Tensor, **more: Any) -> Any:
        return self.capped(self.model(input_ids=input_ids, **more).last_hidden_state)

    def capped(self, hidden: torch.Tensor) -> Any:
        self.rows.append(hidden.size(1))
        return SimpleNamespace(logits=5.0 * torch.tanh(self.lm_head(hidden) / 5.0))


class Roundabout(Capped):
    """Does not call its base as others do."""

    def forward(self, input_ids: torch.Tensor, **more: Any) -> Any:
        return self.capped(type(self.model).forward(self.model, input_ids=input_ids, **more).last_hidden_state)


@pytest.fixture
def load(checkpoint: Path) -> Callable[[type[Any]], Any]:
    def load_as(kind: type[Any]) -> Any:
        model = kind.from_pretrained(checkpoint, dtype="float32").eval()
        model.rows = []
        return model

    return load_as


@pytest.mark.parametrize("length", [1, 2, len(PROMPT)])
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (Qwen2ForCausalLM, None),
        (Capped, [4, 4, 2]),  # the head is applied to as many tokens as a slice has
        (Roundabout, [len(PROMPT)]),  # once for all of them
    ],
)
def test_slices(
    load: Callable[[type[Any]], Any],
    kind: type[Any],
    rows: list[int] | None,
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_forward, "_SLICE_NUMBERS", VOCAB_SIZE * 4)
    model = load(kind)
    prompt = PROMPT[:length]
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0].log_softmax(-1)
    model.rows.clear()
    found = prompt_forward.prompt_pass(model, request(1, prompt, 0, prompt_logprobs=3, pooling="last"))
    logprobs = unpacked(found.prompt_logprobs)
    own = [float(wanted[at, token]) for at, token in enumerate(prompt[1:])]
    assert logprobs.token_logprobs == pytest.approx(own, abs=1e-4)
    top = wanted[:-1].topk(3)
    assert logprobs.top_token_ids == top.indices.tolist()
    assert logprobs.top_logprobs == [pytest.approx(row, abs=1e-4) for row in top.values.tolist()]
    assert found.embedding is not None
    if rows is not None and length == len(PROMPT):
        assert model.rows == rows
    assert "forward" not in model.base_model.__dict__


def test_embeddings_of_one_pass_are_those_of_passes_of_their_own(load: Callable[[type[Any]], Any]) -> None:
    """In float32 on a CPU, to 1e-4, as everywhere."""
    model = load(Qwen2ForCausalLM)
    lengths = (1, 3, len(PROMPT), 2, len(PROMPT))
    asked = [
        request(at, PROMPT[:length][::-1], 0, pooling="mean" if at % 2 else "last") for at, length in enumerate(lengths)
    ]
    alone = [prompt_forward.prompt_pass(model, one).embedding for one in asked]
    for found, wanted in zip(prompt_forward.embeddings(model, asked), alone, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)
