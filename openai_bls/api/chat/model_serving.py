"""Serving of chat models, Triton models with the `openai_task` chat, on /v1/chat/completions and on Triton's endpoints.

Such a model gets the request as JSON, with whatever fields it has, and answers with OpenAI's JSON: one whole answer, or
for `stream` one chunk per response. The answer of a model that answers once is cut into chunks for `stream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, TypeGuard

import msgspec

from openai_bls.api.chat import model_answers
from openai_bls.api.chat.assembly import assemble
from openai_bls.api.common.bodies import convert
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import ChunkSink
from openai_bls.api.common.events.pieces import event, send
from openai_bls.api.common.one_shot import Tally, admitted
from openai_bls.core.errors import ApiError, InvalidRequestError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.registry import TaskModel, unusable

ENDPOINT = "chat.completions"


class _Message(msgspec.Struct):
    role: str


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    """Fields that every chat request needs; all else is the model's."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class ChatModelRequest:
    """A request to a chat model.

    Args:
        model: chat model without a fault.
        body: body of the request.

    Raises:
        InvalidRequestError: it is no chat request.
    """

    def __init__(self, model: TaskModel, body: dict[str, Any]) -> None:
        checked = convert(body, _Body)
        options = checked.stream_options
        self.model = model
        self.stream = bool(checked.stream)
        self.include_usage = options is not None and bool(options.include_usage)
        if options is not None and not self.stream:
            raise InvalidRequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        streams = self.stream and model.decoupled
        if not streams:
            body = {name: value for name, value in body.items() if name != "stream_options"}
        self.text = encode({**body, "stream": streams})
        """JSON text for the model."""


def is_chat(found: Target | TaskModel | None) -> TypeGuard[TaskModel]:
    """True for a chat model.

    Raises:
        OverloadedError: it is a task model with a fault.
    """
    if not isinstance(found, TaskModel):
        return False
    if found.fault is not None:
        raise unusable(found)
    return found.task == "chat"


async def answer(service: Service, context: RequestContext, request: ChatModelRequest) -> msgspec.Raw:
    """The whole answer, as the model wrote it. Cancelling this coroutine cancels the request.

    Raises:
        ApiError: the server takes no more, the model failed, or it answered with an error.
    """
    with admitted(service, context, request.model.name) as tally:
        text, whole = await _whole_answer(service, context, request)
        _count(tally, whole)
        return msgspec.Raw(text)


class StreamedAnswer:
    """A streamed answer on its way into a sink.

    Args:
        service: service that takes the request.
        context: context of the request.
        request: request for a stream.
        sink: receiver of the chunks, or of the error.
    """

    def __init__(self, service: Service, context: RequestContext, request: ChatModelRequest, sink: ChunkSink) -> None:
        self._service = service
        self._context = context
        self._request = request
        self._sink = sink
        # What is kept for a guard.
        self._kept: list[dict[str, Any]] | None = None
        guarded = context.guarded
        if guarded is not None and guarded.wants_answers:
            kept = self._kept = []
            guarded.streams(lambda usage: assemble(kept))
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Stop: the client has gone. Harmless after the end."""
        self._task.cancel()

    async def _run(self) -> None:
        sink = self._sink
        try:
            with admitted(self._service, self._context, self._request.model.name) as tally:
                await send(sink, tally, self._events(tally))
            sink.end()
        except ApiError as error:
            sink.fail(error)

    async def _events(self, tally: Tally) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._chunks(tally)) as chunks:
            async for chunk in chunks:
                yield event(self._sink, chunk)

    async def _chunks(self, tally: Tally) -> AsyncGenerator[bytes, None]:
        model = self._request.model
        if not model.decoupled:
            _, whole = await _whole_answer(self._service, self._context, self._request)
            _count(tally, whole)
            for part in model_answers.chunks(model.name, whole, include_usage=self._request.include_usage):
                if self._kept is not None:
                    self._kept.append(model_answers.checked(model.name, part))
                yield part
            return
        chunks = self._service.chat_models.chunks(model, self._request.text, self._context.timeout_s, self._context.key)
        async with aclosing(chunks) as texts:
            async for text in texts:
                chunk = model_answers.checked(model.name, text)
                _count(tally, chunk)
                if self._kept is not None:
                    self._kept.append(chunk)
                # An event has one line.
                yield encode(chunk) if b"\n" in text or b"\r" in text else text


async def _whole_answer(
    service: Service, context: RequestContext, request: ChatModelRequest
) -> tuple[bytes, dict[str, Any]]:
    """The model's text and what it says."""
    text = await service.chat_models.answer(request.model, request.text, context.timeout_s, context.key)
    return text, model_answers.checked(request.model.name, text)


def _count(tally: Tally, answer: dict[str, Any]) -> None:
    tally.usage = model_answers.usage(answer) or tally.usage
    tally.finish_reasons += model_answers.finish_reasons(answer)
