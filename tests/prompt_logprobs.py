"""Log-probabilities of prompts between the packed form and lists."""

from __future__ import annotations

import numpy as np

from openai_bls.core import logprobs
from openai_bls.core.engine_types import Logprobs, PromptLogprobs


def packed(found: Logprobs) -> PromptLogprobs:
    """In blocks, with numbers as float32 has them."""
    columns = found.token_logprobs, found.top_token_ids, found.top_logprobs
    shape = len(found.token_logprobs), len((found.top_token_ids or [[]])[0])
    own, ids, values = map(np.array, columns)
    return logprobs.packed(own, ids.reshape(shape), values.reshape(shape))


def unpacked(found: PromptLogprobs | None) -> Logprobs:
    """As those of sampled tokens."""
    assert found is not None
    rows = list(logprobs.rows_of(found))
    return Logprobs(
        [own for own, _ in rows],
        [[token_id for token_id, _ in top] for _, top in rows],
        [[value for _, value in top] for _, top in rows],
    )
