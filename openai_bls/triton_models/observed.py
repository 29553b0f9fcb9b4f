"""Observation of a request on Triton's endpoints: for its log line and its trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openai_bls.api.common.encoding import new_id
from openai_bls.core.api_keys import key_name
from openai_bls.pipeline.observed_request import TRITON, observed_request
from openai_bls.pipeline.observer import Observer


@contextmanager
def observed_on_triton(observer: Observer, model: str, parameters: Mapping[str, Any]) -> Iterator[None]:
    """Observe the request of this task for as long as the block lasts, and what the block began until it has ended.

    Args:
        observer: told of it.
        model: name of the Triton model.
        parameters: of the request; `traceparent` and its like belong to a trace.
    """
    if not observer.active:
        yield
        return
    given = {name.lower(): value for name, value in parameters.items() if isinstance(value, str)}
    context = {name: value for name, value in given.items() if name in observer.headers}
    observed = observer.begin(TRITON, model, context)
    observed.request_id = given.get("id") or new_id("req_")
    observed_request.set(observed)
    try:
        yield
    finally:
        observed.key = key_name.get()
        # What it began begins in this turn of the event loop.
        asyncio.get_running_loop().call_soon(observed.released)
