from __future__ import annotations

import asyncio
import struct
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import Logprobs
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.preparation.echoed import check_echoed
from tests.prompt_logprobs import packed
from tests.unit.core_support import Bench, completion, token_ids
from tests.unit.pipeline.serving import begin, body_of


def is_refused(limit: int, lengths: list[int], **fields: object) -> str | None:
    """The field that is named, if the request is refused."""
    request = completion(prompt=["a"] * len(lengths), **fields)
    try:
        check_echoed(request, lengths, limit)
    except InvalidRequestError as error:
        return error.param if error.code == "answer_too_large" else error.code
    return None


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=4)
LOGPROBS = st.sampled_from([None, 0, 1, 5, 20])


def of_an_engine(rng: Random, count: int, top: int) -> Logprobs:
    """Log-probabilities with all the digits that an engine's 32 bits have."""

    def number() -> float:
        return float(struct.unpack("f", struct.pack("f", -20 * rng.random()))[0])

    vocabulary = token_ids("abcdefghijklmnopqrstuvwxyz")
    return Logprobs(
        [number() for _ in range(count)],
        [rng.sample(vocabulary, top) for _ in range(count)],
        [[number() for _ in range(top)] for _ in range(count)],
    )


@given(LENGTHS, st.integers(1, 3), LOGPROBS, st.randoms(use_true_random=True))
def test_what_an_answer_repeats_is_about_what_was_counted(
    lengths: list[int], n: int, top: int | None, rng: Random
) -> None:
    async def run() -> int:
        bench = Bench()
        texts = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length)) for length in lengths]
        task = await begin(bench, completion(prompt=texts, echo=True, logprobs=top, n=n, max_tokens=0))
        asked = [request.prompt_logprobs for request in bench.engine.requests]
        # An engine is asked once for what all choices of a prompt share.
        assert asked == ([top] + [None] * (n - 1)) * len(lengths)
        for at in range(n * len(lengths)):
            found = None
            if top is not None and at % n == 0:
                found = packed(of_an_engine(rng, lengths[at // n] - 1, top))
            bench.engine.deliver(at, "", "length", prompt_logprobs=found)
        choices = body_of(await task)["choices"]
        assert [choice["text"] for choice in choices] == [text for text in texts for _ in range(n)]
        return sum(len(msgspec.json.encode((choice["text"], choice["logprobs"]))) for choice in choices)

    size = asyncio.run(run())
    fields = {"echo": True, "logprobs": top, "n": n}
    named = "echo" if top is None else "logprobs"
    # Choices and lists have some bytes of their own, and the first token has no log-probability.
    few = n * len(lengths) * (160 + 32 * (top or 0))
    # A token's text counts as one of eight letters; here each is one letter.
    texts = 0 if top is not None else 8 * n * sum(lengths)
    assert is_refused(max(1, size // 3 - few), lengths, **fields) == named
    assert is_refused(3 * size + few + texts, lengths, **fields) is None


@given(LENGTHS, st.integers(1, 3), LOGPROBS)
def test_a_prompt_that_is_not_repeated_is_not_counted(lengths: list[int], n: int, top: int | None) -> None:
    assert is_refused(1, lengths, n=n, logprobs=top) is None


@pytest.mark.parametrize(
    ("lengths", "fields", "named"),
    [
        ([327_680], {"logprobs": 20}, None),
        ([1_000_000], {"logprobs": 5}, None),
        ([4096] * 128, {"logprobs": 5, "max_tokens": 0}, None),
        ([32_000], {"n": 128}, None),
        ([32_000], {"logprobs": 20, "n": 128}, "logprobs"),
        ([32_000], {"logprobs": 20, "best_of": 128}, "logprobs"),
        ([32_000] * 128, {"logprobs": 20}, "logprobs"),
        ([1_000_000], {"n": 128}, "echo"),
    ],
)
def test_the_usual_limit(lengths: list[int], fields: dict[str, int], named: str | None) -> None:
    assert is_refused(Bench().service.settings.max_body_bytes_in_flight, lengths, echo=True, **fields) == named
