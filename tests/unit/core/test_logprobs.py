from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core import logprobs
from openai_bls.core.engine_types import GenerationRequest, Logprobs
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.pipeline.generation.echo import Echo, EchoingSequence
from openai_bls.pipeline.generation.generation import Generation
from openai_bls.pipeline.generation.sequence import Sequence
from openai_bls.pipeline.generation.sequence_state import SequenceState
from tests.prompt_logprobs import packed, unpacked
from tests.unit.core_support import EOS, FakeEngineClient, tiny_detokenizers, token_ids

DETOKENIZERS = tiny_detokenizers()


class Chunks:
    """A writer that keeps what a client would get: pieces of text with the tokens that belong to them."""

    def __init__(self) -> None:
        self.chunks: list[tuple[str, list[TokenLogprob]]] = []
        self.waiting: list[TokenLogprob] = []

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        self.waiting += tokens

    def text(self, sequence: SequenceState, text: str) -> None:
        self.chunks.append((text, self.waiting))
        self.waiting = []

    def finished(self, sequence: SequenceState, reason: Any) -> None:
        self.chunks.append(("", self.waiting))

    def done(self, usage: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not expected")


def at_once(work: Callable[[], bool]) -> None:
    """All turns of some work."""
    while work():
        pass


def answer(text: str, cuts: list[int], stop: str | None, *, echo: str = "") -> Chunks:
    """What a client gets of `text`, of which the engine brings pieces of so many tokens."""
    engine, writer = FakeEngineClient(), Chunks()
    request = GenerationRequest(
        engine.new_request_id(), token_ids(echo) or [1], 1000, logprobs=0, prompt_logprobs=0 if echo else None
    )
    kind: Callable[..., Sequence] = Sequence
    if echo:
        kind = partial(EchoingSequence, echo=Echo(token_ids(echo), DETOKENIZERS.new(), at_once))
    sequence = kind(
        0,
        request,
        DETOKENIZERS.new(),
        writer,
        stops=StopMatcher((stop,)) if stop else None,
    )
    Generation(engine, [sequence], writer, [1], lambda generation, outcome: None).start()
    ids = token_ids(text)
    sizes = itertools.cycle(cuts)
    more: dict[str, Any] = {}
    if echo:
        count = len(token_ids(echo)) - 1
        more["prompt_logprobs"] = packed(Logprobs([-0.25] * count, [[]] * count, [[]] * count))
    while ids and request.request_id in engine.listeners:
        size = next(sizes)
        engine.deliver(0, ids[:size], **more)
        ids, more = ids[size:], {}
    engine.deliver(0, [], "stop", stop_token_id=EOS, **more)
    return writer


TEXT = st.text(alphabet="abcé中😀", max_size=12)


@settings(deadline=None)
@given(TEXT, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([None, "b", "bc", "é中", "aa"]), TEXT)
def test_every_token_goes_out_with_the_text_in_which_it_begins(
    text: str, cuts: list[int], stop: str | None, echo: str
) -> None:
    chunks = answer(text, cuts, stop, echo=echo).chunks
    whole = "".join(piece for piece, _ in chunks)
    kept = text if stop is None or stop not in text else text[: text.index(stop)]
    assert whole == echo + kept
    tokens = [token for _, told in chunks for token in told]
    # Nothing lost, nothing twice, nothing of what a stop string cut off; a token a byte.
    assert [token.token_id for token in tokens] == token_ids(echo) + token_ids(kept)
    sent = 0
    for piece, told in chunks:
        for token in told:
            assert sent <= token.offset <= sent + len(piece)
        sent += len(piece)
    # A character's first byte is where it stands in the text.
    for token, char_at in zip(tokens, _characters(whole), strict=True):
        assert token.offset == char_at
    assert [token.logprob for token in tokens[:1]] == ([None] if echo else [-0.5] * len(tokens[:1]))


def _characters(text: str) -> list[int]:
    return [at for at, char in enumerate(text) for _ in char.encode()]


@given(st.integers(0, 40), st.integers(0, 5), st.integers(1, 200))
def test_packed_log_probabilities_are_whole_rows_in_blocks(length: int, top: int, block_bytes: int) -> None:
    own = np.arange(length, dtype=np.float32) / -3
    ids = np.arange(length * top).reshape(length, top) + (1 << 30)
    values = -np.sqrt(np.arange(length * top, dtype=np.float32)).reshape(length, top)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "BLOCK_BYTES", block_bytes)
        found = logprobs.packed(own, ids, values)
    row = 4 * (1 + 2 * top)
    assert all(len(block) <= max(row, block_bytes) for block in found.blocks)
    assert logprobs.row_count(found) == length
    assert unpacked(found) == Logprobs(own.tolist(), ids.tolist(), values.tolist())
