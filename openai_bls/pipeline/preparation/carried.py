"""Bound of what the sequences of a request carry beside their prompts: each has all of it anew in the engine."""

from __future__ import annotations

from collections.abc import Sequence

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

MAX_BAD_WORD_TOKENS = 16_384
"""Tokens of all `bad_words`, each of which counts as a word of its own and inside a text."""
MAX_CARRIED = 1 << 20
"""Numbers that all sequences of a request carry: 40 MB in the engine."""


def check_carried(request: ValidRequest, bad_words: Sequence[Sequence[int]], prediction: Sequence[int]) -> None:
    """Refuse a request whose sequences carry too much.

    Args:
        request: the request.
        bad_words: tokens of its bad words.
        prediction: tokens of its prediction.

    Raises:
        InvalidRequestError: they do; `param` names what is most of it.
    """
    words = sum(map(len, bad_words))
    if words > MAX_BAD_WORD_TOKENS:
        raise InvalidRequestError(
            f"'bad_words' have {words} tokens; at most {MAX_BAD_WORD_TOKENS} are supported.", param="bad_words"
        )
    sequences = request.prompt_count * request.candidates
    carried = {
        "logit_bias": 2 * len(request.sampling.logit_bias),
        "bad_words": words,
        "prediction": len(prediction),
        "allowed_token_ids": len(request.allowed_token_ids),
        "stop_token_ids": len(request.stop_token_ids),
    }
    if sequences * sum(carried.values()) > MAX_CARRIED:
        param = max(carried, key=lambda name: carried[name])
        raise InvalidRequestError(
            f"'{param}' has {carried[param]} numbers for each of {sequences} sequences; with what else they carry "
            f"there may be {MAX_CARRIED} together. Ask for fewer choices at a time.",
            param=param,
        )
