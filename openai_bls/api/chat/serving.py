"""Serving of chat completions and completions: one whole answer, or a stream of chunks."""

from __future__ import annotations

import time
from typing import Any

from openai_bls.api.chat.chunks import Answer, ChunkEncoder, Envelope
from openai_bls.api.chat.logprobs import LogprobRenderer
from openai_bls.api.chat.writers import AnswerWriter, StreamWriter
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.events.event_sink import ChunkSink
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.generation.generation import Generation
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service


async def answer(service: Service, context: RequestContext, request: ValidRequest, target: Target) -> Answer[Any]:
    """The whole answer. Cancelling this coroutine cancels the generation.

    Raises:
        ApiError: the request cannot be honoured, or the engine failed.
    """

    def make_writer() -> AnswerWriter:
        return AnswerWriter(
            _envelope(request, target), candidates=request.candidates, n=request.n, renderer=_renderer(request, target)
        )

    return await service.complete(context, request, target, make_writer)


async def stream(
    service: Service, context: RequestContext, request: ValidRequest, target: Target, sink: ChunkSink
) -> Generation:
    """Begin a streamed answer into `sink`; returns once the engine has the request.

    Raises:
        ApiError: the request cannot be honoured; nothing has been written to the sink.
    """

    def make_writer() -> StreamWriter:
        envelope = _envelope(request, target)
        return StreamWriter(
            ChunkEncoder(envelope, usage_null=request.include_usage, sse=sink.sse),
            sink,
            envelope,
            include_usage=request.include_usage,
            renderer=_renderer(request, target),
        )

    generation, writer = await service.prepare(context, request, target, make_writer)
    if request.continuous_usage_stats:
        writer.usage = lambda: generation.usage
    generation.start(writer.open if sink.opens_at_once else None)
    return generation


def _envelope(request: ValidRequest, target: Target) -> Envelope:
    return Envelope(
        chat=request.chat,
        id=new_id("chatcmpl-" if request.chat else "cmpl-"),
        created=int(time.time()),
        model=request.model or target.model.info.model_name,
        fingerprint=target.model.fingerprint,
        choices=request.prompt_count * request.candidates,
    )


def _renderer(request: ValidRequest, target: Target) -> LogprobRenderer | None:
    if request.logprobs is None:
        return None
    return LogprobRenderer(target.model.detokenizers, chat=request.chat)
