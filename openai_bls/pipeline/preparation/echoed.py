"""Bound of the prompts that an answer repeats: what they take is known before anything is generated."""

from __future__ import annotations

from collections.abc import Iterable

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

TEXT_BYTES = 8
"""Bytes of a token's text, about."""
PLACE_BYTES = 40
"""Bytes of a token's text, log-probability and offset in the lists of an answer, about."""
LOGPROB_BYTES = 32
"""Bytes of a likely token and its log-probability, about: numbers have up to 20 digits."""


def check_echoed(request: ValidRequest, lengths: Iterable[int], limit: int) -> None:
    """Refuse a request whose answer would repeat too much of its prompts.

    Args:
        request: the request.
        lengths: numbers of tokens of its prompts.
        limit: most bytes of an answer (`max_body_bytes_in_flight`).

    Raises:
        InvalidRequestError: it would; `param` names the field.
    """
    if not request.echo:
        return
    size, param = TEXT_BYTES, "echo"
    if request.logprobs is not None:
        # The token itself is one more.
        size, param = TEXT_BYTES + PLACE_BYTES + (request.logprobs + 1) * LOGPROB_BYTES, "logprobs"
    tokens = request.candidates * sum(lengths)
    if tokens * size > limit:
        what = "" if request.logprobs is None else f" with {request.logprobs} log-probabilities each"
        raise InvalidRequestError(
            f"The answer would repeat {tokens} tokens of prompts{what}, about {tokens * size} bytes; it may have "
            f"{limit} (max_body_bytes_in_flight). Ask for fewer prompts, choices or log-probabilities at a time.",
            param=param,
            code="answer_too_large",
        )
