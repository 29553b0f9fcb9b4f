"""Errors for clients, with HTTP status and OpenAI body.

::

    Exception
    └── ApiError                 carries the HTTP status and OpenAI's type, param and code
        ├── InvalidRequestError  400  the request cannot be honoured as it stands
        │   ├── TooLargeError    413  it has more bytes than the server reads
        │   └── ContextLengthError    the prompt leaves no room for an answer in the model's context
        ├── ModelNotFoundError   404  `model` names nothing that is served here
        ├── NotFoundError        404  no such endpoint
        ├── AuthenticationError  401  a missing or wrong API key
        ├── PermissionDeniedError 403  the API key may not do this
        ├── RefusedByGuardError  4xx  a guard refuses the request or its answer
        ├── RateLimitError       429  too much load, of all clients or of this key; comes right by waiting
        ├── OverloadedError      503  the server, or a part of it, answers nobody just now
        ├── StorageFullError     507  the disk of the server's files is full
        ├── DeadlineError        504  another model has not answered in time
        │   └── RequestDeadlineError  the request's own timeout has passed
        ├── UnsupportedByModelError 501  the model that is served cannot do this at all
        ├── ModelAnswerError     502  another model has answered with what cannot be passed on
        └── EngineError          500  the engine failed; the client did nothing wrong

Every message may be shown to a client: it names the field at fault, never a path, and carries no traceback. Any other
exception is logged with its traceback and answered as a plain `EngineError`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from openai_bls.core.engine_types import TokenDelta

# Characters of a message: a large bad value that it echoes does not make a large error.
_MAX_MESSAGE_LENGTH = 600
_MAX_PARAM_LENGTH = 200


class ApiError(Exception):
    """An error with an OpenAI error body.

    Args:
        message: text for the client: the fault and a remedy.
        param: the request field at fault, in OpenAI's notation (`messages[0].role`), or None.
        code: OpenAI's machine-readable code, or None.
    """

    status: int = 500
    type: str = "server_error"
    default_code: str | None = None
    retry_after_s: float | None = None
    """Seconds after which the same request may succeed; None if that is not known."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        if len(message) > _MAX_MESSAGE_LENGTH:
            message = message[: _MAX_MESSAGE_LENGTH - 1] + "…"
        super().__init__(message)
        self.message = message
        if param is not None and len(param) > _MAX_PARAM_LENGTH:
            param = param[: _MAX_PARAM_LENGTH - 1] + "…"
        self.param = param
        self.code = code if code is not None else self.default_code

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer."""
        return {} if self.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}

    def body(self) -> dict[str, Any]:
        """The OpenAI error body: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequestError(ApiError):
    """400: the request cannot be honoured as it stands."""

    status = 400
    type = "invalid_request_error"


class TooLargeError(InvalidRequestError):
    """413: the request has more bytes than the server reads.

    Args:
        limit: most bytes that a request may have.
        setting: name of the setting that gives the limit.
        what: what is too large.
        param: the request field that is too large, or None.
    """

    status = 413

    def __init__(
        self, limit: int, setting: str = "max_request_bytes", *, what: str = "The request", param: str | None = None
    ) -> None:
        super().__init__(f"{what} is larger than {limit} bytes ({setting}).", param=param)


class ContextLengthError(InvalidRequestError):
    """400: the prompt leaves no room for an answer in the model's context.

    Args:
        message: text for the client; None is the sentence with the numbers.
        prompt_tokens: tokens of the prompt; None if it was refused before it was tokenized.
        max_model_len: most tokens of prompt and answer together.
        param: the request field with the prompt.
    """

    default_code = "context_length_exceeded"

    def __init__(self, message: str | None, *, prompt_tokens: int | None, max_model_len: int, param: str) -> None:
        if message is None:
            message = (
                f"This model's maximum context length is {max_model_len} tokens, and the prompt has {prompt_tokens}, "
                "which leaves no room for an answer. Shorten the prompt."
            )
        super().__init__(message, param=param)
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


class AuthenticationError(ApiError):
    """401: a missing or wrong API key."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDeniedError(ApiError):
    """403: the API key may not do this."""

    status = 403
    type = "invalid_request_error"
    default_code = "insufficient_permissions"


class NotFoundError(ApiError):
    """404: no such endpoint."""

    status = 404
    type = "invalid_request_error"


class ModelNotFoundError(NotFoundError):
    """404: `model` names nothing that is served here."""

    default_code = "model_not_found"


class RefusedByGuardError(ApiError):
    """4xx: a guard refuses the request or its answer, in its own words.

    Args:
        message: text for the client.
        status: HTTP status, from 400 to 499.
        kind: `type` of OpenAI's error body.
        param: the request field at fault, or None.
        code: OpenAI's error code; None is `refused_by_guard`.
    """

    default_code = "refused_by_guard"

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.type = kind


RefusalReason = Literal[
    "in_progress",
    "queue_full",
    "too_late",
    "concurrent_requests",
    "requests_per_minute",
    "tokens_per_minute",
]
"""Reason of a `RateLimitError`, as the metrics call it; `too_late` is a request that could not meet its deadline."""

# The official clients wait no longer than this for a retry.
_MAX_RETRY_AFTER_S = 60.0


class RateLimitError(ApiError):
    """429: there is more load than the server takes, of all clients together or of this client's key.

    Args:
        message: text for the client.
        reason: label of the refusal in the metrics.
        kind: `type` of OpenAI's error body: what there is too much of.
        retry_after_s: seconds after which there may be room.
    """

    status = 429
    default_code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        reason: RefusalReason,
        kind: Literal["requests", "tokens"] = "requests",
        retry_after_s: float | None = 1.0,
    ) -> None:
        if retry_after_s is not None:
            retry_after_s = min(max(1.0, retry_after_s), _MAX_RETRY_AFTER_S)
            message = f"{message} Try again in {math.ceil(retry_after_s)} s."
        super().__init__(message)
        self.type = kind
        self.reason: RefusalReason = reason
        self.retry_after_s = retry_after_s


class OverloadedError(ApiError):
    """503: the server, or a part of it, answers nobody just now: not loaded, shutting down, no room for bodies."""

    status = 503
    default_code = "server_overloaded"
    retry_after_s = 1.0


class StorageFullError(ApiError):
    """507: the disk of the server's files is full, or its quota is used up."""

    status = 507
    default_code = "storage_full"

    def __init__(self) -> None:
        super().__init__("The server has no space left to store this. Delete files that are not needed any more.")


class DeadlineError(ApiError):
    """504: another model has not answered in time."""

    status = 504
    default_code = "timeout"


class RequestDeadlineError(DeadlineError):
    """504: the request's own timeout has passed.

    Args:
        timeout_s: timeout of the request, in seconds.
        waited: True if the timeout passed before the engine had the request.
    """

    default_code = "deadline_exceeded"

    def __init__(self, timeout_s: float, *, waited: bool) -> None:
        where = "before the engine began with it" if waited else "while it was being answered"
        super().__init__(f"The request's timeout of {timeout_s:g} s has passed {where}.", param="timeout")
        self.waited = waited


class UnsupportedByModelError(ApiError):
    """501: the model that is served cannot do this at all, whatever the request says."""

    status = 501
    default_code = "unsupported_by_model"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer; the official clients retry what is 500 and above unless they are told not to."""
        return {**super().headers, "x-should-retry": "false"}


class ModelAnswerError(ApiError):
    """502: another model has answered with what cannot be passed on.

    Args:
        model: name of the model.
        fault: part of the sentence that says what the model did, such as "answered with a number".
    """

    status = 502
    default_code = "bad_model_answer"

    def __init__(self, model: str, fault: str) -> None:
        super().__init__(f"The model {model!r} {fault}.")


class EngineError(ApiError):
    """500: the engine failed; the client did nothing wrong."""


def engine_failure(delta: TokenDelta, cancelled: str) -> ApiError | None:
    """The error of a delta that reports a failure; None if it has tokens or a regular end.

    Args:
        cancelled: the message if the engine gave the request up without saying why.
    """
    if delta.finish_reason == "cancelled":
        return OverloadedError(delta.error or cancelled)
    if delta.finish_reason == "error":
        kind = InvalidRequestError if delta.invalid else EngineError
        return kind(delta.error or "The engine failed.")
    return None
