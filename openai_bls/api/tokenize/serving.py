"""Serving of tokenize and detokenize: exactly the token ids of a generation, and exactly their text."""

from __future__ import annotations

from typing import Any

from openai_bls.api.common.bodies import convert
from openai_bls.api.common.large_bodies import is_large, parsed
from openai_bls.api.common.one_shot import admitted, prompt_token_ids
from openai_bls.api.tokenize.schema import DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, parse_tokenize
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.preparation.prompts import check_token_ids
from openai_bls.pipeline.service import Service


async def tokenize(service: Service, context: RequestContext, body: dict[str, Any]) -> TokenizeAnswer:
    """The token ids of a text or a conversation, however many they are.

    Raises:
        ApiError: the request is bad, or preprocessing cannot be reached.
    """
    max_items = service.models.longest_context
    request, wants_strings = await parsed(
        lambda: parse_tokenize(body, max_items), large=is_large(body), key=context.key
    )
    target = await service.look_for(context, request)
    tokens = await prompt_token_ids(service, context, request, target)
    model = target.model
    strings = None
    if wants_strings:
        # A long text takes a while, and other requests' tokens must not wait for it.
        shown = model.detokenizers.token_text
        strings = await parsed(lambda: list(map(shown, tokens)), large=True, key=context.key)
    return TokenizeAnswer(len(tokens), model.info.max_model_len, tokens, strings)


async def detokenize(service: Service, context: RequestContext, body: dict[str, Any]) -> DetokenizeAnswer:
    """The text of token ids, special tokens included.

    Raises:
        ApiError: the request is bad.
    """
    request = convert(body, DetokenizeBody)
    target = service.find(context, request.model)
    with admitted(service, context, target.name):
        check_token_ids([request.tokens], target.model, "tokens")
        decode = target.model.detokenizers.decode
        return DetokenizeAnswer(await parsed(lambda: decode(request.tokens), large=True, key=context.key))
