"""/v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import Cancellable, ChunkSink
from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.common.lifted import Lifted
from openai_bls.api.endpoint import FORM, Endpoint, Operation, Respond, Smoke, expect
from openai_bls.api.http.forms import form_body, struct_of_json
from openai_bls.api.http.handlers import Api
from openai_bls.api.tasks.transcription.schema import (
    UNSUPPORTED,
    TextDelta,
    TextDone,
    Transcription,
    TranscriptionBody,
    TranscriptionVerbose,
    Translation,
    TranslationBody,
    TranslationVerbose,
)
from openai_bls.api.tasks.transcription.serving import hearing
from openai_bls.core.errors import ModelAnswerError, OverloadedError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service

# Half a second of silence: a WAV file of 8-bit samples, 8,000 in a second.
_SAMPLES = b"\x80" * 4000
_WAV = b"RIFF\xc4\x0f\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\xa0\x0f\0\0" + _SAMPLES


class _Text(msgspec.Struct):
    text: str


def _text_of(answer: bytes) -> str:
    """Text of an answer, which a guard may have changed.

    Raises:
        OverloadedError: the guard has made something else of it.
    """
    try:
        return msgspec.json.decode(answer, type=_Text).text
    except msgspec.DecodeError:
        raise OverloadedError(
            "A guard of this server does not work at the moment; try again later.", code="guard_unavailable"
        ) from None


def _endpoint(name: str, body: type[TranslationBody], operation: Operation, *, of_some: bool = False) -> Endpoint:
    """An endpoint; `of_some` says that not every model of the task has it."""

    async def handle(api: Api, request: Request, context: RequestContext) -> Response:
        asked = await hearing(api.service, context, await form_body(api, request, context, body))
        if asked.streams:
            # OpenAI ends these events without [DONE].
            stream = api.event_stream(context, ending=b"")
            return await api.streamed(request, context, stream, asyncio.create_task(asked.stream(stream)))
        response = await api.answered(request, context, asked.answer())
        return PlainTextResponse(_text_of(bytes(response.body))) if asked.is_text else response

    def triton(given: Lifted[dict[str, Any]]) -> Respond:
        """Files have no place in JSON: there they are base64."""

        async def respond(service: Service, context: RequestContext, sink: ChunkSink) -> bytes | Cancellable:
            unknown = service.settings.unknown_fields
            found, context.ignored = await parsed(
                lambda: struct_of_json(given.whole(), body, unknown), large=given.large, key=context.key
            )
            asked = await hearing(service, context, found)
            return asyncio.create_task(asked.stream(sink)) if asked.streams else encode(await asked.answer())

        return respond

    return Endpoint(
        name=name,
        paths=(f"/v1/{name.replace('.', '/')}",),
        handler=handle,
        operation=operation,
        triton=triton,
        smoke=Smoke(
            body={"file": base64.b64encode(_WAV).decode()}, check=_check, optional=of_some, tasks=("transcription",)
        ),
    )


def _check(answer: Any) -> str:
    expect(isinstance(answer["text"], str), "there is no text")
    return f"{len(answer['text'])} characters of silence"


_FILE = {"file": "@speech.mp3"}

ENDPOINTS = (
    _endpoint(
        "audio.transcriptions",
        TranscriptionBody,
        Operation(
            summary="The words of audio",
            body=TranscriptionBody,
            body_type=FORM,
            answer=(Transcription, TranscriptionVerbose),
            events=(TextDelta, TextDone),
            errors=frozenset({ModelAnswerError}),
            unsupported={TranscriptionBody: UNSUPPORTED},
            example=_FILE,
        ),
    ),
    _endpoint(
        "audio.translations",
        TranslationBody,
        Operation(
            summary="The words of audio in English",
            body=TranslationBody,
            body_type=FORM,
            answer=(Translation, TranslationVerbose),
            errors=frozenset({ModelAnswerError}),
            example=_FILE,
        ),
        of_some=True,
    ),
)
