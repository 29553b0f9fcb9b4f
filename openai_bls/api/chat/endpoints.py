"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.chat import serving
from openai_bls.api.chat.validation import Body, parse_json, parse_object
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.event_sink import ChunkSink
from openai_bls.api.endpoint import Endpoint, Respond, Smoke, expect
from openai_bls.api.http.handlers import Api, Handler
from openai_bls.pipeline.generation import Generation
from openai_bls.pipeline.service import Service


def _endpoint(name: Body, path: str, prompt: dict[str, Any]) -> Endpoint:
    def handler(api: Api) -> Handler:
        async def generate(request: Request) -> Response:
            valid = parse_json(name, await api.body(request))
            if not valid.stream:
                return await api.answered(request, serving.answer(api.service, valid))
            stream = api.event_stream()
            return await api.streamed(request, stream, await serving.stream(api.service, valid, stream))

        return generate

    def triton(body: dict[str, Any]) -> Respond:
        valid = parse_object(name, body)

        async def respond(service: Service, sink: ChunkSink) -> bytes | Generation:
            if valid.stream:
                return await serving.stream(service, valid, sink)
            return encode(await serving.answer(service, valid))

        return respond

    smoke = Smoke(body={**prompt, "max_tokens": 8, "temperature": 0}, check=_check)
    return Endpoint(name=name, paths=(path,), handler=handler, triton=triton, smoke=smoke)


def _check(answer: Any) -> str:
    (choice,) = answer["choices"]
    expect(choice["finish_reason"] in ("stop", "length"), f"finish_reason is {choice['finish_reason']!r}")
    usage = answer["usage"]
    expect(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], f"usage is {usage}")
    return f"{usage['completion_tokens']} tokens"


ENDPOINTS = (
    _endpoint("chat.completions", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hello."}]}),
    _endpoint("completions", "/v1/completions", {"prompt": "Hello"}),
)
