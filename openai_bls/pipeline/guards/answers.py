"""Answers of guards: one JSON object, with a change or a refusal, or with nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from openai_bls.core.errors import RefusedByGuardError

Hook = Literal["before", "after"]
"""A guard is asked before the engine sees a request, and after its answer is there."""


class _Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error for the client."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None
    status: Annotated[int, msgspec.Meta(ge=400, le=499)] = 400


class _Before(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Verdict of a guard on a request: a new body, an error, or nothing."""

    changed: dict[str, Any] | None = msgspec.field(default=None, name="request")
    error: _Refusal | None = None


class _After(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Verdict of a guard on an answer: a new one, an error, or nothing."""

    changed: dict[str, Any] | None = msgspec.field(default=None, name="answer")
    error: _Refusal | None = None


_DECODERS: dict[Hook, Any] = {"before": msgspec.json.Decoder(_Before), "after": msgspec.json.Decoder(_After)}
_encode = msgspec.json.Encoder().encode


class GuardError(Exception):
    """An answer that a guard may not give; the message is one sentence."""


def read_answer(hook: Hook, texts: list[Any]) -> tuple[bytes | None, RefusedByGuardError | None]:
    """The guard's change as JSON text, or its refusal, or neither.

    Args:
        hook: hook at which the guard was asked.
        texts: elements of its output.

    Raises:
        GuardError: it answered anything else.
    """
    if len(texts) != 1 or not isinstance(texts[0], bytes):
        raise GuardError("its output is not one element of BYTES")
    try:
        answer: _Before | _After = _DECODERS[hook].decode(texts[0])
        changed = None if answer.changed is None else _encode(answer.changed)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError) as error:
        raise GuardError(f"its answer is not one of a guard: {error}") from None
    refused = answer.error
    if refused is None:
        return changed, None
    if changed is not None:
        raise GuardError("its answer has both a change and an error")
    kind = {} if refused.type is None else {"kind": refused.type}
    return None, RefusedByGuardError(
        refused.message, status=refused.status, param=refused.param, code=refused.code, **kind
    )
