"""Distance of a quantized model from itself before, over one text: log-probabilities and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from openai_bls_transformers import cache_argument
from openai_bls_transformers.record import QuantDistance

_TEXT = """\
The water of a river carries sand and stones towards the sea. Where the land is steep the current is fast, and even
large stones roll along; where the valley opens it slows down, and what is heavy sinks first. After thousands of years
there is a plain of fine soil, on which people grow rice, wheat and vegetables. In spring the river rises by 3.5 metres.

def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

Question: A train leaves at 9:40 and arrives at 12:15. How long does the journey take?
Answer: It takes 2 hours and 35 minutes, because from 9:40 to 11:40 are two hours, and 35 minutes remain.
{"name": "Ada", "born": 1815, "languages": ["English", "French"], "married": true}
"""


def text_ids(version_dir: Path) -> list[int] | None:
    """Token ids of the text; None if no tokenizer lies beside the engine."""
    path = version_dir / "tokenizer" / "tokenizer.json"
    if not path.is_file():
        return None
    ids: list[int] = Tokenizer.from_file(str(path)).encode(_TEXT).ids
    return ids


@torch.no_grad()  # type: ignore[untyped-decorator]
def logprobs(model: Any, ids: list[int], cache: Any = None) -> torch.Tensor:
    """Log-probabilities after each token but the last, float32 [tokens - 1, vocabulary], by one plain pass.

    Args:
        model: a transformers causal language model.
        ids: token ids of a text.
        cache: an empty KV cache of transformers', for a pass with one.
    """
    named = {} if cache is None else {cache_argument.NAME: cache}
    output = model(input_ids=torch.tensor([ids], device=model.device), use_cache=cache is not None, **named)
    found: torch.Tensor = output.logits[0, :-1].float().log_softmax(-1)
    return found


def measure(before: torch.Tensor, after: torch.Tensor, ids: list[int]) -> QuantDistance:
    """Distance between two results of `logprobs` over the same tokens."""
    following = torch.tensor(ids[1:], device=before.device).unsqueeze(1)
    differences = (after.gather(1, following) - before.gather(1, following)).abs()
    same = (after.argmax(-1) == before.argmax(-1)).float()
    return QuantDistance(
        tokens=len(ids) - 1,
        mean=round(float(differences.mean()), 5),
        max=round(float(differences.max()), 5),
        same_greedy=round(float(same.mean()), 5),
    )
