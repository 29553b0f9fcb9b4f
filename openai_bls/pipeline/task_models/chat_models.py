"""Calls of chat models: Triton models with the `openai_task` chat, JSON text in and JSON text out.

One that answers once is called by BLS, a decoupled one over gRPC. A chat model may itself send requests to this server,
and what these need must be there while it waits for them: hence the limit on BLS calls, which share their threads with
the calls of other models, and the admission of requests while the server drains (`Service.check_admission`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

import numpy as np

from openai_bls.core.errors import ModelAnswerError
from openai_bls.pipeline.task_models.calls import call_failure
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array, Arrays, ModelCallError, ModelCalls, NoStreamsError

logger = logging.getLogger(__name__)

# BLS calls of all chat models at a time, a third of those of all models (`triton_models.bls.calls`): what a chat
# model asks this server for while it answers, embeddings for example, gets its turn. Further ones go over gRPC.
_MOST_BLS_CALLS = 8


class ChatModels:
    """Calls of chat models; belongs to the event loop's thread.

    Args:
        calls: calls of other models of this server.
        timeout_s: deadline of a request in seconds, for models that have none of their own.
    """

    def __init__(self, calls: ModelCalls, timeout_s: float) -> None:
        self._calls = calls
        self._timeout_s = timeout_s
        self._bls_calls = 0
        self.in_progress = 0
        """Requests that chat models are working on."""

    async def answer(self, model: TaskModel, request: bytes, beside_s: float | None = None, key: str = "") -> bytes:
        """The one response of a model. Cancelling this cancels the request if it went over gRPC.

        Args:
            model: chat model without a fault.
            request: JSON text.
            beside_s: timeout in seconds that came outside the request's body; None if none did.
            key: name of the request's API key.

        Raises:
            ApiError: it failed, is not there, sent none or several responses, or its deadline has passed.
        """
        timeout_s = self._timeout(model, beside_s)
        with self._working(model, timeout_s):
            if model.decoupled:
                return await self._streamed_answer(model, request, timeout_s, key)
            if self._bls_calls >= _MOST_BLS_CALLS:
                try:
                    return await self._streamed_answer(model, request, timeout_s, key)
                except NoStreamsError:
                    logger.debug("no gRPC: a call of %s waits for its turn", model.name)
            return await self._bls_answer(model, request, timeout_s, key)

    async def chunks(
        self, model: TaskModel, request: bytes, beside_s: float | None = None, key: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """The responses of a decoupled model, in order, at least one. Closing the iterator cancels the request.

        Args:
            model: chat model without a fault.
            request: JSON text.
            beside_s: timeout in seconds that came outside the request's body; None if none did.
            key: name of the request's API key.

        Raises:
            ApiError: as for `answer`; also in the middle of a stream.
        """
        empty = True
        timeout_s = self._timeout(model, beside_s)
        with self._working(model, timeout_s):
            async with aclosing(self._stream(model, request, timeout_s, key)) as responses:
                async for response in responses:
                    empty = False
                    yield _text(model, response)
            if empty:
                raise ModelAnswerError(model.name, "sent no response")

    async def _bls_answer(self, model: TaskModel, request: bytes, timeout_s: float, key: str) -> bytes:
        self._bls_calls += 1
        try:
            return _text(model, await self._calls.call(*_arguments(model, request), timeout_s=timeout_s, key=key))
        finally:
            self._bls_calls -= 1

    async def _streamed_answer(self, model: TaskModel, request: bytes, timeout_s: float, key: str) -> bytes:
        text = None
        async with aclosing(self._stream(model, request, timeout_s, key)) as responses:
            async for response in responses:
                if text is not None:
                    raise ModelAnswerError(model.name, "sent several responses where 'stream' is false")
                text = _text(model, response)
        if text is None:
            raise ModelAnswerError(model.name, "sent no response")
        return text

    def _stream(self, model: TaskModel, request: bytes, timeout_s: float, key: str) -> AsyncGenerator[Arrays, None]:
        return self._calls.stream(*_arguments(model, request), timeout_s=timeout_s, key=key)

    def _timeout(self, model: TaskModel, beside_s: float | None) -> float:
        timeout_s = model.timeout_s or self._timeout_s
        return timeout_s if beside_s is None else min(timeout_s, beside_s)

    @contextmanager
    def _working(self, model: TaskModel, timeout_s: float) -> Iterator[None]:
        self.in_progress += 1
        try:
            yield
        except ModelCallError as error:
            raise call_failure(model.name, error, timeout_s) from None
        finally:
            self.in_progress -= 1


def _arguments(model: TaskModel, request: bytes) -> tuple[str, dict[str, Array], list[str]]:
    spec = model.inputs["request"]
    batch = 1 if model.max_batch_size else 0
    array = np.array([request], dtype=np.object_).reshape((1,) * (len(spec.dims) + batch))
    return model.name, {spec.name: array}, [model.outputs["response"].name]


def _text(model: TaskModel, response: Arrays) -> bytes:
    name = model.outputs["response"].name
    values = response[name].reshape(-1).tolist() if name in response else []
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise ModelAnswerError(model.name, f"sent a response whose output {name!r} is not one text")
    return values[0]
