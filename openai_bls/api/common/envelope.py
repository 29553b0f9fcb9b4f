"""Envelope of a request on /v1 and on Triton's endpoints: every error is one that its client may see."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from openai_bls.core.errors import ApiError, EngineError, StorageFullError
from openai_bls.pipeline.lifecycle.context import RequestContext

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


async def enveloped(context: RequestContext, work: Awaitable[T], refuse: Callable[[ApiError], T]) -> T:
    """Result of `work`, or what `refuse` makes of the error that it raises.

    Args:
        context: context of the request.
        work: the answer; of an exception that is no `ApiError` the log has the traceback, and the client a sentence.
        refuse: counts the error and answers with it.
    """
    context.begin_work()
    try:
        return await work
    except ApiError as error:
        _forget_frames(error)
        return refuse(error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            # A state of the machine, not a fault of the code: one line says it.
            logger.error("%s %r failed: %s (request %s)", context.method, context.path, error, context.request_id)
            return refuse(StorageFullError())
        logger.exception("%s %r failed (request %s)", context.method, context.path, context.request_id)
        return refuse(EngineError("The server had an error; see its log."))
    finally:
        context.end_work()


def _forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that nobody logs: their frames hold the request's body, and the context, which
    holds the error. Only a garbage collection would free that circle."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__context__
