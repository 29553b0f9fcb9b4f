"""/tokenize and /detokenize: under /v1, and where vLLM has them."""

from __future__ import annotations

from typing import Any

from openai_bls.api.endpoint import Smoke, expect, one_shot
from openai_bls.api.tokenize.schema import ChatBody, DetokenizeBody, PromptBody
from openai_bls.api.tokenize.serving import detokenize, tokenize


def _check_tokens(answer: Any) -> str:
    expect(answer["tokens"] and answer["count"] == len(answer["tokens"]), "'count' is not the number of 'tokens'")
    return f"{answer['count']} tokens"


def _check_text(answer: Any) -> str:
    expect(answer["prompt"], "there is no text")
    return f"{len(answer['prompt'])} characters"


ENDPOINTS = (
    one_shot(
        "tokenize",
        tokenize,
        body=(PromptBody, ChatBody),
        summary="Token ids of a prompt or a conversation",
        paths=("/v1/tokenize", "/tokenize"),
        smoke=Smoke(body={"prompt": "Hello, world"}, check=_check_tokens, engines=()),
    ),
    one_shot(
        "detokenize",
        detokenize,
        body=DetokenizeBody,
        summary="Text of token ids",
        paths=("/v1/detokenize", "/detokenize"),
        smoke=Smoke(body={"tokens": list(range(100, 110))}, check=_check_text, engines=()),
    ),
)
