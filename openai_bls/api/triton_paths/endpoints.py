"""Triton's paths on /v1's port: `generate` and `generate_stream`, and the index of the model repository.

For `openai_bls` they take and answer what /v1 does, since Triton's own front end takes no JSON objects. Requests of
`ensemble` and `tensorrt_llm_bls` go on to Triton's HTTP port, for servers of which one port alone is reached.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from openai_bls.api.chat.chunks import Answer, ChatChoice, ChatChunkChoice, Chunk, TextChoice, TextChunkChoice
from openai_bls.api.chat.endpoints import generate
from openai_bls.api.chat.schema import UNSUPPORTED, UNSUPPORTED_IN_CHAT, ChatCompletionRequest, CompletionRequest
from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.large_bodies import is_large, parsed
from openai_bls.api.common.lifted import lifted
from openai_bls.api.common.other_forms import refuse_text_input
from openai_bls.api.endpoint import Endpoint, Operation
from openai_bls.api.http.disconnect import unless_disconnected
from openai_bls.api.http.handlers import Api
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.transport.triton_http import FrontEndAnswer, TritonHttp

_PATHS = ("generate", "generate_stream")
PASSED_ON = ("ensemble", "tensorrt_llm_bls")
"""Models whose requests go on to Triton's HTTP port."""
_FAILED = 500
# What Triton's HTTP front end says, with a 500, of a body or a value that it cannot read.
_WRONG_VALUE = re.compile(rb'\{"error":"(?:Unable to parse|attempt to get|parameter key|[^"]*JSON)')


class TextBody(msgspec.Struct):
    """Inputs of `ensemble` and `tensorrt_llm_bls`, of which there are more."""

    text_input: str
    max_tokens: int | None = None
    stream: bool | None = None


class TextAnswer(msgspec.Struct):
    """Text output of `ensemble` and `tensorrt_llm_bls`; other tensors are passed on."""

    text_output: str


class PassedOnError(msgspec.Struct):
    """An error of Triton's, or of /v1's before a request is passed on."""

    error: str | dict[str, str | None]
    """Triton's sentence, or the object that errors of /v1 have."""


class ModelState(msgspec.Struct, omit_defaults=True):
    """A model of the repository."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


async def _generate(api: Api, request: Request, context: RequestContext) -> Response:
    """POST /v2/models/openai_bls/generate and /generate_stream."""
    body = await api.body(request, context)
    fields = await parsed(lambda: json_object(lifted(body)[0]), large=is_large(body), key=context.key)
    refuse_text_input(fields)
    if ("messages" in fields) == ("prompt" in fields):
        raise InvalidRequestError(
            "Give 'messages' (chat) or 'prompt' (completion): this path takes what /v1/chat/completions and "
            "/v1/completions take.",
            param="messages",
        )
    return await generate(api, request, context, "chat.completions" if "messages" in fields else "completions", body)


async def _pass_on(api: Api, request: Request, context: RequestContext) -> Response:
    """POST of text_input to a model of `PASSED_ON`."""
    if api.service.guards is not None:
        raise InvalidRequestError(
            "Guards see requests of openai_bls alone: send 'messages' or 'prompt' to /v1, or text_input to Triton."
        )
    fields = await api.parsed(request, context, json_object)
    context.stream = fields.get("stream") is True
    key = request.headers.get("authorization", "")
    if key and "api_key" not in fields:
        # Triton's front end hands no header to models.
        fields = {**fields, "authorization": key}
    work = _passed_on(_front_end(api).post(request.url.path, msgspec.json.encode(fields)))
    return await unless_disconnected(request, work)


async def _passed_on(asking: Awaitable[FrontEndAnswer]) -> Response:
    answer = await asking
    if answer.status != _FAILED:
        return _PassedOn(answer)
    try:
        body = b"".join([piece async for piece in answer.body])
    finally:
        answer.close()
    return Response(body, 400 if _WRONG_VALUE.match(body) else _FAILED, media_type=answer.content_type)


async def _index(api: Api, request: Request, context: RequestContext) -> Response:
    """POST /v2/repository/index, which is closed on Triton's port with the rest of the repository's API."""
    body = await api.body(request, context)
    if body:
        json_object(body)
    return await unless_disconnected(request, _passed_on(_front_end(api).index(body or b"{}")))


def _front_end(api: Api) -> TritonHttp:
    front_end = api.service.front_end
    if front_end is None:
        raise OverloadedError("The HTTP port of this tritonserver is off or not known, so nothing is passed on to it.")
    return front_end


class _PassedOn(StreamingResponse):
    """An answer of Triton's, whose connection is closed with it, also if its client leaves before it begins."""

    def __init__(self, answer: FrontEndAnswer) -> None:
        super().__init__(answer.body, answer.status, media_type=answer.content_type)
        self._close = answer.close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


ENDPOINTS = (
    Endpoint(
        name="generate",
        paths=tuple(f"/v2/models/openai_bls/{path}" for path in _PATHS),
        handler=_generate,
        operation=Operation(
            summary="A body of /v1 at Triton's path",
            body=(ChatCompletionRequest, CompletionRequest),
            answer=(Answer[ChatChoice], Answer[TextChoice]),
            events=(Chunk[ChatChunkChoice], Chunk[TextChunkChoice]),
            unsupported={ChatCompletionRequest: UNSUPPORTED_IN_CHAT, CompletionRequest: UNSUPPORTED},
        ),
    ),
    Endpoint(
        name="generate.official",
        paths=tuple(f"/v2/models/{model}/{path}" for model in PASSED_ON for path in _PATHS),
        handler=_pass_on,
        has_guards=False,
        operation=Operation(
            summary="text_input of the official models, passed on to Triton",
            body=TextBody,
            answer=TextAnswer,
            events=(TextAnswer, PassedOnError),
            error=PassedOnError,
        ),
    ),
    Endpoint(
        name="repository.index",
        paths=("/v2/repository/index",),
        handler=_index,
        has_guards=False,
        operation=Operation(
            summary="Models of the repository and their states", answer=list[ModelState], error=PassedOnError
        ),
    ),
)
