"""/v1/chat/completions/render and /v1/completions/render, where vLLM has them."""

from __future__ import annotations

from typing import Any

from openai_bls.api.chat.schema import UNSUPPORTED, ChatCompletionRequest, CompletionRequest
from openai_bls.api.endpoint import Smoke, expect, one_shot
from openai_bls.api.render.serving import render_chat, render_completion


def _check(answer: Any) -> str:
    expect(answer["token_ids"] and answer["sampling_params"]["max_tokens"] == 8, "there are no token ids")
    return f"{len(answer['token_ids'])} tokens"


def _check_all(answer: Any) -> str:
    expect(len(answer) == 2, "there is not one entry for each prompt")
    return ", ".join(map(_check, answer))


ENDPOINTS = (
    one_shot(
        "chat.completions.render",
        render_chat,
        body=ChatCompletionRequest,
        summary="Token ids and sampling parameters of a chat completion, which is not made",
        paths=("/v1/chat/completions/render",),
        smoke=Smoke(body={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}, check=_check),
        unsupported={ChatCompletionRequest: UNSUPPORTED},
    ),
    one_shot(
        "completions.render",
        render_completion,
        body=CompletionRequest,
        summary="Token ids and sampling parameters of a completion, which is not made",
        paths=("/v1/completions/render",),
        smoke=Smoke(body={"prompt": ["Hello", "world"], "max_tokens": 8}, check=_check_all),
        unsupported={CompletionRequest: UNSUPPORTED},
    ),
)
