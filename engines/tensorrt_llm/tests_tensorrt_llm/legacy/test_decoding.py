from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, Grammar, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_tensorrt_llm.legacy.decoding import UNAVAILABLE, Decoder, failure

END, OTHER_END = 100, 101
FULL = "The engine's queue is full; try again later."


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(
        **{"request_id": 3, "prompt_token_ids": [1], "max_tokens": 10, "stop_token_ids": (END,), **fields}
    )


def take(decoder: Decoder, tokens: list[int], *, final: bool = False) -> TokenDelta | None:
    return decoder.take(tokens, final=final)


def test_length() -> None:
    assert take(Decoder(request(max_tokens=2)), [5, 6], final=True) == TokenDelta(3, [5, 6], "length")
    # Without an end token only the length or a grammar can end it.
    assert take(Decoder(request(stop_token_ids=())), [5], final=True) == TokenDelta(3, [5], "length")
    ended = take(Decoder(request(stop_token_ids=(), grammar=Grammar("regex", "a"))), [5], final=True)
    assert ended == TokenDelta(3, [5], "stop")


def test_a_further_end_token_is_taken_out_and_told() -> None:
    decoder = Decoder(request(stop_token_ids=(END, OTHER_END), logprobs=0))
    delta = decoder.take([5, OTHER_END], [-0.5, -1.0], final=False)
    assert delta is not None
    assert (delta.token_ids, delta.finish_reason, delta.stop_token_id) == ([5], "stop", OTHER_END)
    assert delta.logprobs is not None
    assert delta.logprobs.token_logprobs == [-0.5]
    assert take(decoder, [], final=True) is None


def test_the_tokens_of_a_stop_word_are_delivered() -> None:
    decoder = Decoder(request(max_tokens=3, stop_words=((7, 8), (9,))))
    assert take(decoder, [5, 7]) == TokenDelta(3, [5, 7])
    # Also where it comes with the last token that there may be.
    assert take(decoder, [8], final=True) == TokenDelta(3, [8], "stop")


@pytest.mark.parametrize("values", [None, [], [-0.5]])
def test_missing_log_probabilities_are_the_engines_fault(values: list[float] | None) -> None:
    decoder = Decoder(request(logprobs=0))
    delta = decoder.take([5, 6], values, final=False)
    assert delta == TokenDelta(3, [], "error", error=ENGINE_FAILED)
    assert decoder.ended


@given(
    tokens=st.lists(st.integers(0, 99), max_size=12),
    cuts=st.lists(st.integers(0, 12)),
    ends_empty=st.booleans(),
    max_tokens=st.integers(12, 14),
    logprobs=st.booleans(),
)
def test_however_it_is_chopped_the_same_comes_out(
    tokens: list[int], cuts: list[int], ends_empty: bool, max_tokens: int, logprobs: bool
) -> None:
    """Responses with any number of tokens, an empty one at the end or not, log-probabilities always from the start."""
    decoder = Decoder(request(max_tokens=max_tokens, logprobs=0 if logprobs else None))
    values = [-float(at) for at in range(len(tokens))]
    borders = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    pieces = [(tokens[a:b], values[:b]) for a, b in itertools.pairwise(borders)]
    if ends_empty or not pieces:
        pieces.append(([], values))
    found = [
        decoder.take(piece, so_far if logprobs else None, final=at == len(pieces) - 1)
        for at, (piece, so_far) in enumerate(pieces)
    ]
    deltas = [delta for delta in found if delta is not None]
    assert [token for delta in deltas for token in delta.token_ids] == tokens
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    reason, ended_by = ("length", None) if len(tokens) == max_tokens else ("stop", END)
    assert (deltas[-1].finish_reason, deltas[-1].stop_token_id) == (reason, ended_by)
    told = [value for delta in deltas if delta.logprobs for value in delta.logprobs.token_logprobs]
    assert told == (values if logprobs else [])
    for delta in deltas:
        assert (delta.logprobs is not None) == (logprobs and bool(delta.token_ids))


@given(
    tokens=st.lists(st.sampled_from([1, 2, OTHER_END]), max_size=8),
    cuts=st.sets(st.integers(0, 8)),
)
def test_nothing_follows_a_further_end_token(tokens: list[int], cuts: set[int]) -> None:
    decoder = Decoder(request(stop_token_ids=(END, OTHER_END)))
    borders = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    found = [take(decoder, tokens[a:b]) for a, b in itertools.pairwise(borders)]
    found.append(take(decoder, [], final=True))
    deltas = [delta for delta in found if delta is not None]
    before = tokens[: tokens.index(OTHER_END)] if OTHER_END in tokens else tokens
    assert [token for delta in deltas for token in delta.token_ids] == before
    assert deltas[-1].stop_token_id == (OTHER_END if OTHER_END in tokens else END)
    assert [delta.finish_reason for delta in deltas].count("stop") == 1
    assert decoder.fail("too late") is None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Request for unknown model: 'tensorrt_llm' is not found", ("cancelled", False, UNAVAILABLE)),
        ("Request for unknown model: 'tensorrt_llm' has no available versions", ("cancelled", False, UNAVAILABLE)),
        (
            "Server is stopping, scheduler for model has stopped accepting new inference requests",
            ("cancelled", False, UNAVAILABLE),
        ),
        ("Exceeds maximum queue size", ("cancelled", False, FULL)),
        ("Maximum queue size of 2 has been reached, please try again later", ("cancelled", False, FULL)),
        (
            "Executor failed process requestId 7 due to the following error: Encountered an error when fetching new "
            "request: Prompt length (30) exceeds maximum input length (20). Set log level to info and check "
            "TRTGptModel logs for how maximum input length is set (/src/llmRequest.h:373)\n1  0x7f /opt/lib.so",
            ("error", True, "Prompt length (30) exceeds maximum input length (20)."),
        ),
        ("[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc (/src/x.cpp:3)", ("error", False, ENGINE_FAILED)),
    ],
)
def test_failures(message: str, expected: tuple[str, bool, str], caplog: pytest.LogCaptureFixture) -> None:
    delta = failure(3, message)
    assert (delta.finish_reason, delta.invalid, delta.error) == expected
    assert (message in caplog.text) == (delta.error == ENGINE_FAILED)
