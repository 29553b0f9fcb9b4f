"""/v1/audio/speech."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import Cancellable, ChunkSink
from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.common.lifted import Lifted
from openai_bls.api.endpoint import Endpoint, Operation, Respond, Smoke, expect
from openai_bls.api.http.disconnect import unless_disconnected
from openai_bls.api.http.handlers import Api
from openai_bls.api.tasks.speech.schema import SpeechBody, SpeechDelta, SpeechDone, parse_speech
from openai_bls.api.tasks.speech.serving import Speech, speech
from openai_bls.core.errors import ModelAnswerError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service


async def _asked(service: Service, context: RequestContext, given: dict[str, Any]) -> Speech:
    ignored = IgnoredFields(service.settings.unknown_fields)
    body = parse_speech(ignored.body(given, SpeechBody))
    context.ignored = ignored.names
    return await speech(service, context, body)


async def _handle(api: Api, request: Request, context: RequestContext) -> Response:
    asked = await _asked(api.service, context, await api.parsed(request, context, json_object))
    if not asked.streams:
        audio = await unless_disconnected(request, asked.whole())
        return Response(audio, headers={"content-type": asked.content_type})
    # OpenAI ends these events without [DONE].
    stream = api.event_stream(context, ending=b"") if asked.has_events else api.byte_stream(context, asked.content_type)
    return await api.streamed(request, context, stream, asyncio.create_task(asked.stream(stream)))


def _triton(given: Lifted[dict[str, Any]]) -> Respond:
    """Bytes have no place in Triton's JSON: there the whole audio is base64 too."""

    async def respond(service: Service, context: RequestContext, sink: ChunkSink) -> bytes | Cancellable:
        asked = await _asked(service, context, await parsed(given.whole, large=given.large, key=context.key))
        return asyncio.create_task(asked.stream(sink)) if asked.has_events else encode(await asked.answer())

    return respond


def _check(answer: Any) -> str:
    audio = answer if isinstance(answer, bytes) else base64.b64decode(answer["audio"])
    expect(audio, "there is no audio")
    return f"{len(audio)} bytes"


ENDPOINTS = (
    Endpoint(
        name="audio.speech",
        paths=("/v1/audio/speech",),
        handler=_handle,
        operation=Operation(
            summary="A text as audio",
            body=SpeechBody,
            answer=bytes,
            events=(SpeechDelta, SpeechDone),
            errors=frozenset({ModelAnswerError}),
        ),
        triton=_triton,
        smoke=Smoke(body={"input": "Hello."}, check=_check, tasks=("speech",)),
    ),
)
