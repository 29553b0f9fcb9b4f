from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.chat.logprobs import CollectedLogprobs, LogprobRenderer
from openai_bls.api.common.encoding import encode
from openai_bls.core.logprobs import TokenLogprob
from tests.unit.core_support import EOS, tiny_detokenizers, token_ids

DETOKENIZERS = tiny_detokenizers()
SPACE, A = token_ids(" a")
FIRST, SECOND = token_ids("é")


def test_chat() -> None:
    tokens = [TokenLogprob(A, -0.5, [(SPACE, -0.1), (FIRST, float("-inf"))], 3), TokenLogprob(FIRST, -2.0, [], 4)]
    assert LogprobRenderer(DETOKENIZERS, chat=True).render(tokens) == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": " ", "logprob": -0.1, "bytes": [32]},
                    {"token": "bytes:\\xc3", "logprob": -9999.0, "bytes": [0xC3]},
                ],
            },
            {"token": "bytes:\\xc3", "logprob": -2.0, "bytes": [0xC3], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_completions() -> None:
    tokens = [
        TokenLogprob(EOS, None, [], 0),
        TokenLogprob(A, -0.5, [(SPACE, -0.1)], 0),
        TokenLogprob(SECOND, -0.2, [(SECOND, -0.2)], 1),
    ]
    assert LogprobRenderer(DETOKENIZERS, chat=False).render(tokens) == {
        "tokens": ["<|im_end|>", "a", "bytes:\\xa9"],
        "token_logprobs": [None, -0.5, -0.2],
        # The token itself is always among them.
        "top_logprobs": [None, {" ": -0.1, "a": -0.5}, {"bytes:\\xa9": -0.2}],
        "text_offset": [0, 0, 1],
    }


class Counting:
    """A tokenizer's detokenizers, and how often each token was looked up."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()

    def token_text(self, token_id: int) -> str:
        self.asked["text", token_id] += 1
        return DETOKENIZERS.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        self.asked["bytes", token_id] += 1
        return DETOKENIZERS.token_bytes(token_id)


@pytest.mark.parametrize("chat", [False, True])
def test_a_token_is_looked_up_once_a_request(chat: bool) -> None:
    """An echoed prompt repeats its tokens, and its likeliest ones even more."""
    run = [TokenLogprob(at % 7, -0.5, [((at + k) % 11, -0.1 * k) for k in range(5)], at) for at in range(500)]
    counting = Counting()
    detokenizers: Any = counting
    renderer = LogprobRenderer(detokenizers, chat=chat)
    rendered = renderer.render(run[:300])
    more = renderer.render(run[300:])
    assert set(counting.asked.values()) == {1}
    assert {token_id for _, token_id in counting.asked} == set(range(11))
    # In runs or at once, and by whichever renderer: it is the same.
    joined = {name: rendered[name] + more[name] if rendered[name] is not None else None for name in rendered}
    assert joined == LogprobRenderer(DETOKENIZERS, chat=chat).render(run)


@given(st.lists(st.integers(0, 6), max_size=20), st.booleans())
def test_what_is_collected_is_what_is_rendered(runs: list[int], chat: bool) -> None:
    tokens = [TokenLogprob(at % 7, None if not at else -0.5, [(at % 11, -0.1)], at) for at in range(sum(runs))]
    renderer = LogprobRenderer(DETOKENIZERS, chat=chat)
    collected = CollectedLogprobs(renderer)
    place = 0
    for run in runs:
        collected.add(tokens[place : place + run])
        place += run
    assert json.loads(encode(collected.answer())) == json.loads(encode(renderer.render(tokens)))
    if chat:
        assert json.loads(encode(renderer.encoded(tokens))) == renderer.render(tokens)["content"]
