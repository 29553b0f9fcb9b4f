"""Envelope of a request on Triton's endpoints: its context, its errors, and its end once all of it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.envelope import enveloped
from openai_bls.core.errors import ApiError, OverloadedError
from openai_bls.pipeline.lifecycle.context import CLIENT_GONE, TRITON, RequestContext
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.triton_models.endpoint import request_keys


def triton_context(observer: Observer, model: str, parameters: Mapping[str, Any]) -> RequestContext:
    """Context of a request that arrives now.

    Args:
        observer: observer that learns of the request's end.
        model: name of the Triton model.
        parameters: parameters of the request; `traceparent` and its like belong to a trace.
    """
    trace_headers = None
    if observer.headers:
        given = {name.lower(): value for name, value in parameters.items() if isinstance(value, str)}
        trace_headers = {name: value for name, value in given.items() if name in observer.headers}
    context = observer.begin(TRITON, model, trace_headers)
    context.request_id = request_keys.request_id(parameters) or new_id("req_")
    return context


async def answer_on_triton(
    context: RequestContext,
    work: Awaitable[None],
    refuse: Callable[[ApiError], None],
    fail: Callable[[ApiError], None],
    closing: Callable[[], bool],
) -> None:
    """Answer a request by `work`, and end its context once that and what it began have ended.

    Args:
        context: context of the request.
        work: answer to the request; raises ApiError for the client's errors.
        refuse: answers with an error.
        fail: sends an error, if the client is still there.
        closing: true if the model is being unloaded.
    """
    try:
        await enveloped(context, work, refuse)
    except asyncio.CancelledError:
        context.http_status = 503 if closing() else CLIENT_GONE
        # If it was the client that has gone, this is not sent any more.
        fail(OverloadedError("The server is shutting down."))
    finally:
        # What it began begins in this turn of the event loop.
        asyncio.get_running_loop().call_soon(context.released)
