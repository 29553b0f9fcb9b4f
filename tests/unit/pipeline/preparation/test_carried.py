"""Bound of what the sequences of a request carry."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.api.chat.validation import parse_object
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.preparation.carried import MAX_BAD_WORD_TOKENS, MAX_CARRIED, check_carried

MESSAGES = [{"role": "user", "content": "a"}]
MANY = MAX_CARRIED // 128


@pytest.mark.parametrize(
    ("fields", "words", "prediction", "param"),
    [
        ({"n": 128}, [], MANY, None),
        ({"n": 128}, [], MANY + 1, "prediction"),
        ({"n": 1}, [], MAX_CARRIED, None),
        ({"n": 128}, [MANY // 2] * 2, 0, None),
        ({"n": 128}, [MANY // 2] * 2 + [1], 0, "bad_words"),
        ({"n": 1}, [MAX_BAD_WORD_TOKENS], 0, None),
        ({"n": 1}, [MAX_BAD_WORD_TOKENS, 1], 0, "bad_words"),
        ({"n": 128, "logit_bias": {f"{at}": 1 for at in range(MANY // 2)}}, [], 0, None),
        ({"n": 128, "logit_bias": {f"{at}": 1 for at in range(MANY // 2)}}, [1], 0, "logit_bias"),
        ({"n": 128, "allowed_token_ids": [*range(1000)]}, [], MANY - 999, "prediction"),
    ],
)
def test_sequences_carry_so_much(fields: dict[str, Any], words: list[int], prediction: int, param: str | None) -> None:
    request = parse_object("chat.completions", {"messages": MESSAGES, **fields})
    bad_words = [[7] * length for length in words]
    if param is None:
        check_carried(request, bad_words, [7] * prediction)
        return
    with pytest.raises(InvalidRequestError) as refused:
        check_carried(request, bad_words, [7] * prediction)
    assert refused.value.param == param
