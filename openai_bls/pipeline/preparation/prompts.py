"""Prompts of a request as token ids, checked against vocabulary and context length."""

from __future__ import annotations

from typing import NamedTuple

from openai_bls.core.engine_types import PromptResult
from openai_bls.core.errors import ContextLengthError, InvalidRequestError
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.models.registry import ServedModel
from openai_bls.pipeline.preparation.carried import check_carried
from openai_bls.pipeline.preparation.checks import stop_token_ids
from openai_bls.pipeline.preparation.images import media_prompt, named_images, with_sizes

# Enough for a marker and the white space around it, whatever the tokenizer makes of them.
_TAIL_TOKENS = 24


class Prompts(NamedTuple):
    """Tokenized prompts of a request."""

    token_ids: list[list[int]]
    """One list per prompt."""
    bad_words: tuple[tuple[int, ...], ...]
    """Token sequences that must not be generated; all sequences of the request share them."""
    prediction: tuple[int, ...]
    """Token ids that the output is likely to be."""
    tail: str
    """End of the (first) rendered prompt; see `prompt_tail`."""
    media: MediaPrompt | None = None
    """Images of the (one) prompt; None if it is text alone."""


async def tokenize(
    request: ValidRequest, model: ServedModel, images: tuple[Image, ...] = (), *, key: str = ""
) -> Prompts:
    """The prompts as token ids, checked against vocabulary and context length.

    Args:
        request: the request.
        model: model that it names.
        images: decoded images of the request.
        key: name of the request's API key.

    Raises:
        ApiError: a prompt is bad, or preprocessing cannot be reached.
    """
    any_length = request.truncate_prompt_tokens is not None
    result = PromptResult()
    if request.prompt is not None:
        with named_images(request):
            result = await model.tokenize(with_sizes(request.prompt, images), key=key, any_length=any_length)
    prompts = request.prompt_token_ids or result.prompt_token_ids
    check_token_ids(request.prompt_token_ids, model, "prompt")
    _check_allowed(request, model, result.bad_words)
    check_carried(request, result.bad_words, result.prediction)
    if request.truncate_prompt_tokens is not None:
        prompts = [prompt[-request.truncate_prompt_tokens :] for prompt in prompts]
    for at, prompt in enumerate(prompts):
        check_length(request, model, prompt, "messages" if request.chat else element("prompt", at, prompts))
    media = media_prompt(images, result) if images else None
    tail = prompt_tail(request, model, prompts[0])
    return Prompts(prompts, tuple(map(tuple, result.bad_words)), tuple(result.prediction), tail, media)


def _check_allowed(request: ValidRequest, model: ServedModel, bad_words: list[list[int]]) -> None:
    """Refuse allowed tokens that are outside the vocabulary, or may all be forbidden at once."""
    if not request.allowed_token_ids:
        return
    check_token_ids([list(request.allowed_token_ids)], model, "allowed_token_ids")
    forbidden = {word[-1] for word in bad_words}
    if request.min_tokens:
        forbidden.update(stop_token_ids(request, model))
    if forbidden.issuperset(request.allowed_token_ids):
        raise InvalidRequestError(
            "'allowed_token_ids' holds no token that 'bad_words' and 'min_tokens' leave.", param="allowed_token_ids"
        )


def check_token_ids(prompts: list[list[int]], model: ServedModel, param: str) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        InvalidRequestError: one is outside.
    """
    size = model.info.vocab_size
    for at, prompt in enumerate(prompts):
        if prompt and max(prompt) >= size:
            place = element(param, at, prompts)
            raise InvalidRequestError(
                f"'{place}' holds the token id {max(prompt)}; the vocabulary has {size}.", param=place
            )


def element(param: str, at: int, among: list[list[int]]) -> str:
    """Path of prompt number `at` of the field `param`, which may be a single prompt by itself."""
    return f"{param}[{at}]" if len(among) > 1 else param


def check_length(request: ValidRequest, model: ServedModel, prompt: list[int], param: str) -> None:
    """Refuse a prompt, the field `param`, that leaves no room for an answer in the model's context.

    Raises:
        InvalidRequestError: it is empty, or does not.
    """
    if not prompt:
        raise InvalidRequestError(f"'{param}' gives an empty prompt.", param=param)
    limit = model.info.max_model_len
    # At least one token must have room, unless none is wanted.
    if len(prompt) + (request.max_tokens != 0) > limit:
        raise ContextLengthError(None, prompt_tokens=len(prompt), max_model_len=limit, param=param)


def prompt_tail(request: ValidRequest, model: ServedModel, prompt: list[int]) -> str:
    """The end of a rendered prompt, special tokens included; empty if no reasoning can begin in it."""
    if not request.chat or model.formats.reasoning is None:
        return ""
    return model.detokenizers.decode(prompt[-_TAIL_TOKENS:])
