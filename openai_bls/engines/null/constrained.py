"""A script held to a grammar, token by token, as a sampler holds a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import EngineFinishReason, GenerationRequest
from openai_bls.engines.grammars.matcher import Constraint
from openai_bls.engines.null.sequence import Output


def constrained(
    token_ids: Sequence[int],
    constraint: Constraint,
    request: GenerationRequest,
    vocab_size: int,
    closing: Sequence[int],
) -> Output:
    """The output of a model that would write `token_ids`, but is held to the request's grammar.

    A token that is not allowed in its place is left out. Where the script is over and the grammar is not, there follows
    the only text that may, or a token of `closing`, or the first token that is allowed.

    Args:
        token_ids: tokens of the script.
        constraint: constraint of the grammar, at its beginning.
        request: the request.
        vocab_size: size of the vocabulary.
        closing: tokens with which an output comes to its end, the best first.

    Raises:
        GrammarError: the grammar cannot be followed.
    """
    made: list[int] = []
    reason: EngineFinishReason = "stop"
    stop_token_id: int | None = None
    wanted = iter(token_ids)
    mask = np.empty(-(-vocab_size // 32), np.int32)
    while not constraint.ended:
        if len(made) == request.max_tokens:
            reason = "length"
            break
        constraint.fill(mask)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")
        stops = [one for one in request.stop_token_ids if allowed[one]]
        allowed[stops] = 0
        token_id = next((one for one in wanted if allowed[one]), None)
        if token_id is None and not (stops and len(made) >= request.min_tokens):
            token_id = _first(allowed, [*constraint.forced()[:1], *closing])
        if token_id is None:
            stop_token_id = stops[0]
            break
        if not constraint.accept(token_id):
            raise RuntimeError(f"a grammar refuses token {token_id}, which it had not forbidden")
        made.append(token_id)
    return Output(made, reason, stop_token_id)


def _first(allowed: npt.NDArray[np.uint8], preferred: Sequence[int]) -> int | None:
    """The first of `preferred` that is allowed, else the first token that is; None if none is."""
    rest = np.flatnonzero(allowed)[:1].tolist()
    return next((one for one in [*preferred, *rest] if allowed[one]), None)
