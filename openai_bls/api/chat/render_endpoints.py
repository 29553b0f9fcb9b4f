"""/v1/chat/completions/render and /v1/completions/render: the token ids that a request would give the engine."""

from __future__ import annotations

from typing import Any

from openai_bls.api.chat.generate_request import GenerateRequest
from openai_bls.api.chat.rendering import rendered, rendered_one
from openai_bls.api.chat.schema import UNSUPPORTED, UNSUPPORTED_IN_CHAT, ChatCompletionRequest, CompletionRequest
from openai_bls.api.chat.validation import Body, parse_object
from openai_bls.api.common.large_bodies import is_large, parsed
from openai_bls.api.endpoint import Smoke, expect, one_shot
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service


async def _render_chat(service: Service, context: RequestContext, body: dict[str, Any]) -> GenerateRequest:
    request = await _request(service, context, "chat.completions", body)
    return await rendered_one(service, context, request, await service.look_for(context, request), "chatcmpl-")


async def _render_completion(service: Service, context: RequestContext, body: dict[str, Any]) -> list[GenerateRequest]:
    request = await _request(service, context, "completions", body)
    return await rendered(service, context, request, await service.look_for(context, request), "cmpl-")


async def _request(service: Service, context: RequestContext, name: Body, body: dict[str, Any]) -> ValidRequest:
    max_items = service.models.longest_context
    unknown = service.settings.unknown_fields
    return await parsed(lambda: parse_object(name, body, max_items, unknown), large=is_large(body), key=context.key)


def check_rendered(answer: Any) -> str:
    """Smoke check of a prompt with 8 for `max_tokens`."""
    expect(answer["token_ids"] and answer["sampling_params"]["max_tokens"] == 8, "there are no token ids")
    return f"{len(answer['token_ids'])} tokens"


def _check_all(answer: Any) -> str:
    expect(len(answer) == 2, "there is not one entry for each prompt")
    return ", ".join(map(check_rendered, answer))


RENDERING = (
    one_shot(
        "chat.completions.render",
        _render_chat,
        body=ChatCompletionRequest,
        summary="Token ids and sampling parameters of a chat completion, which is not made",
        paths=("/v1/chat/completions/render",),
        smoke=Smoke(body={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}, check=check_rendered),
        unsupported={ChatCompletionRequest: UNSUPPORTED_IN_CHAT},
    ),
    one_shot(
        "completions.render",
        _render_completion,
        body=CompletionRequest,
        summary="Token ids and sampling parameters of a completion, which is not made",
        paths=("/v1/completions/render",),
        smoke=Smoke(body={"prompt": ["Hello", "world"], "max_tokens": 8}, check=_check_all),
        unsupported={CompletionRequest: UNSUPPORTED},
    ),
)
