"""Logits processors of single sequences, as the host collects them for a step."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls_transformers.sampling.logits_processors import (
    HostLogitsProcessors,
    LogitsUpdate,
)
from tests_transformers.engine.engine.test_request_state import Constraint

PROMPT = [5, 6, 5]
VOCAB_SIZE = 70


def asked(**more: Any) -> GenerationRequest:
    return GenerationRequest(request_id=1, prompt_token_ids=PROMPT, **{"max_tokens": 20} | more)


def state(output: Sequence[int] = (), prompt: Sequence[int] = PROMPT, awaited: int = 0) -> Any:
    """A sequence about to choose its next token, the last `awaited` of whose tokens are still on their way."""
    known = list(output)[: len(output) - awaited]
    return SimpleNamespace(
        initial_tokens=list(prompt), generated_tokens=known, position_offset=len(prompt) + len(output)
    )


def collected(processors: HostLogitsProcessors, of: Any, row: int = 2) -> LogitsUpdate:
    update = LogitsUpdate()
    processors.collect(row, of, update)
    return update


def test_who_does_not() -> None:
    sampling = SamplingParams(temperature=0.3, top_p=0.5, top_k=3, min_p=0.1, seed=1)
    assert not HostLogitsProcessors.needed(
        asked(sampling=sampling, stop_token_ids=(9,), stop_words=((1,),), prompt_logprobs=1)
    )
    assert not HostLogitsProcessors.needed(asked(min_tokens=3))  # no stop token that would have to wait


def test_bitmasks_of_the_grammars_that_go_on() -> None:
    """Asked for late: whose request has ended by then, or whose grammar fails, has none."""
    errors = GrammarError("too complex"), RuntimeError("a bug")
    constraints = [Constraint([1]), *(Constraint([1], ("fill", 0), error) for error in errors), Constraint([1])]
    processors = [HostLogitsProcessors(asked(logprobs=1), constraint) for constraint in constraints]
    update = LogitsUpdate()
    for row, one in enumerate(processors, 2):
        one.collect(row, state(), update)
    assert update.changes_logits
    processors[0].ended = True
    for _ in range(2):
        rows, masks = update.bitmasks(VOCAB_SIZE)
        assert rows == [5]
        assert masks.dtype == np.int32
        assert masks.tolist() == [[-1, -1, -1]]  # three words for 70 tokens
    assert [one.failure for one in processors] == [None, *errors, None]
    assert [row for row, *_ in update.logprobs] == [2, 3, 4, 5]  # the rest of the rows is as always
