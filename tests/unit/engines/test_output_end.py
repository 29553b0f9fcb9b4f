"""The end of an output, against a plain model of the whole output, however steps cut it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.engines.output_end import End, OutputEnd

TOKENS = st.integers(0, 3)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(tuple), max_size=3).map(tuple)


def expected(output: list[int], request: GenerationRequest) -> End | None:
    """The first end in the whole output; a stop token goes before a stop word, and both before the length."""
    for count in range(1, len(output) + 1):
        text = tuple(output[:count])
        if text[-1] in request.stop_token_ids:
            return End(count - 1, "stop", text[-1])
        if count >= request.min_tokens and any(text[-len(word) :] == word for word in request.stop_words):
            return End(count, "stop")
        if count == request.max_tokens:
            return End(count, "length")
    return None


@settings(max_examples=400)
@given(
    output=st.lists(TOKENS, max_size=12),
    words=WORDS,
    stops=st.lists(TOKENS, max_size=2).map(tuple),
    min_tokens=st.integers(0, 8),
    max_tokens=st.integers(1, 14),
    data=st.data(),
)
def test_the_end_is_that_of_the_whole_output(
    output: list[int],
    words: tuple[tuple[int, ...], ...],
    stops: tuple[int, ...],
    min_tokens: int,
    max_tokens: int,
    data: st.DataObject,
) -> None:
    sampling = SamplingParams()
    request = GenerationRequest(
        0, [1], max_tokens, sampling, stop_words=words, stop_token_ids=stops, min_tokens=min_tokens
    )
    output = output[:max_tokens]  # no engine samples more
    ends, delivered = OutputEnd(request), 0
    found = None
    while output[delivered:] and found is None:
        size = data.draw(st.integers(1, len(output) - delivered))
        found = ends.advance(output[delivered : delivered + size])
        delivered += size if found is None else found.delivered
        assert ends.count == delivered
    wanted = expected(output, request)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert (delivered, found.reason, found.stop_token_id) == (wanted.delivered, wanted.reason, wanted.stop_token_id)
