"""Validation of chat completion and completion bodies into `ValidRequest`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from openai_bls.api.chat import schema
from openai_bls.api.chat.messages import AssistantMessage, Message
from openai_bls.api.chat.thinking import thinking_hints
from openai_bls.api.chat.tool_choice import tool_use
from openai_bls.api.chat.tools import ArgumentRoom, template_message
from openai_bls.api.common.bodies import fault, texts_or_token_ids
from openai_bls.api.common.faults import TOO_DEEP
from openai_bls.api.common.fields import IgnoredFields, UnknownFields, converted_fields, decoded_body
from openai_bls.api.common.large_bodies import check_count
from openai_bls.api.common.unsupported import refuse_unsupported
from openai_bls.core.engine_types import PromptRequest, SamplingParams
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.media import ImageSource
from openai_bls.core.request import ValidRequest
from openai_bls.output.structured import requested

Body = Literal["chat.completions", "completions"]
"""Kind of request body, by the name of its endpoint."""

# OpenAI's documented default for the legacy endpoint.
DEFAULT_COMPLETION_TOKENS = 16


_SCHEMAS: dict[str, type[schema.ChatCompletionRequest | schema.CompletionRequest]] = {
    "chat.completions": schema.ChatCompletionRequest,
    "completions": schema.CompletionRequest,
}
_DECODERS = {name: msgspec.json.Decoder(cls) for name, cls in _SCHEMAS.items()}


def parse_json(
    endpoint: Body, body: bytes, max_items: int | None = None, unknown: UnknownFields = "refuse"
) -> ValidRequest:
    """A `ValidRequest` from a request body.

    Args:
        endpoint: endpoint of the request.
        body: JSON text.
        max_items: see `check_count`.
        unknown: treatment of unknown fields.

    Raises:
        InvalidRequestError: the body is not JSON, or a field is unknown, of the wrong type, out of range or not
            honoured; `param` names the field.
    """
    ignored = IgnoredFields(unknown)
    return _checked(decoded_body(_DECODERS[endpoint], body, fault, ignored), max_items, ignored)


def parse_object(
    endpoint: Body, body: dict[str, Any], max_items: int | None = None, unknown: UnknownFields = "refuse"
) -> ValidRequest:
    """A `ValidRequest` from a parsed body; raises as `parse_json` does."""
    ignored = IgnoredFields(unknown)
    return _checked(converted_fields(body, _SCHEMAS[endpoint], fault, ignored), max_items, ignored)


def with_image_params(request: ValidRequest, params: Sequence[str]) -> ValidRequest:
    """The request with its images under the names of another API.

    Args:
        request: request that the chat completion of that API's body has become.
        params: fields of its images, in order.
    """
    if not request.images:
        return request
    named = zip(request.images, params, strict=True)
    return msgspec.structs.replace(
        request, images=tuple(msgspec.structs.replace(image, param=param) for image, param in named)
    )


def _checked(
    request: schema.ChatCompletionRequest | schema.CompletionRequest, max_items: int | None, ignored: IgnoredFields
) -> ValidRequest:
    if isinstance(request, schema.ChatCompletionRequest) and max_items is not None:
        check_count(sum(map(_parts, request.messages)), "messages", max_items)
        check_count(len(request.tools or ()), "tools", max_items)
        check_count(len(request.documents or ()), "documents", max_items)
    try:
        return _validate(request, ignored)
    except RecursionError:
        # A schema within msgspec's bounds may be beyond those of what walks through it.
        raise InvalidRequestError(TOO_DEEP) from None


def _parts(message: Message) -> int:
    calls = message.tool_calls if isinstance(message, AssistantMessage) else None
    return max(1, len(calls or ()) + (len(message.content) if isinstance(message.content, list) else 0))


def _validate(request: schema.ChatCompletionRequest | schema.CompletionRequest, ignored: IgnoredFields) -> ValidRequest:
    chat = isinstance(request, schema.ChatCompletionRequest)
    fields = schema.UNSUPPORTED_IN_CHAT if chat else schema.UNSUPPORTED
    # Null, like what is left out, changes nothing.
    given = _given(request, fields)
    if given:
        refuse_unsupported(given, fields)
    options = request.stream_options
    if options is not None and not request.stream:
        raise InvalidRequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    sampling = _sampling(request)
    structured = _given(request, schema.STRUCTURED_FIELDS)
    common: dict[str, Any] = {
        "model": request.model,
        "n": request.n or 1,
        "stop": tuple(_strings(request.stop, "stop", schema.MAX_STOP_STRINGS)),
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "min_tokens": request.min_tokens or 0,
        "allowed_token_ids": tuple(dict.fromkeys(request.allowed_token_ids or ())),
        "ignore_eos": bool(request.ignore_eos),
        "include_stop_str_in_output": bool(request.include_stop_str_in_output),
        "skip_special_tokens": request.skip_special_tokens is not False,
        "sampling": SamplingParams(**sampling),
        "sampling_given": tuple(sampling),
        "structured": requested(structured) if structured else None,
        "truncate_prompt_tokens": request.truncate_prompt_tokens,
        "timeout": request.timeout,
        "priority": request.priority or 0,
        "kv_transfer_params": _transferable(request.kv_transfer_params),
        "ignored": ignored.names,
        "stream": bool(request.stream),
        "include_usage": options is not None and bool(options.include_usage),
        "continuous_usage_stats": options is not None
        and bool(options.include_usage and options.continuous_usage_stats),
    }
    bad_words = _strings(request.bad_words, "bad_words", schema.MAX_BAD_WORDS)
    if isinstance(request, schema.ChatCompletionRequest):
        return _chat(request, common, bad_words)
    return _completion(request, common, bad_words)


def _transferable(params: dict[str, Any] | None) -> dict[str, Any] | None:
    """`kv_transfer_params` as engines can get them, whose frames have numbers of 64 bits; None if there are none."""
    try:
        msgspec.msgpack.encode(params)
    except (OverflowError, ValueError):
        raise InvalidRequestError(
            "'kv_transfer_params' holds what cannot be passed on: integers have up to 64 bits.",
            param="kv_transfer_params",
        ) from None
    return params or None


def _sampling(request: schema.Generation) -> dict[str, Any]:
    """Fields of `SamplingParams` that are set, in the engines' terms where these differ from OpenAI's."""
    given = _given(request, SamplingParams.__struct_fields__)
    if "seed" in given:
        if not -(2**63) <= given["seed"] < 2**64:
            raise InvalidRequestError("'seed' must be an integer of 64 bits.", param="seed")
        # OpenAI's may be negative; the engines' are unsigned.
        given["seed"] %= 2**64
    if "logit_bias" in given:
        given["logit_bias"] = _logit_bias(given["logit_bias"])
    if "top_k" in given:
        # Both 0 (transformers) and -1 (vLLM) mean off.
        given["top_k"] = max(given["top_k"], 0)
    if given.get("top_p") == 0:
        # The smallest nucleus: the likeliest token, which is OpenAI's least.
        del given["top_p"]
        given["top_k"] = 1
    return given


def _given(request: schema.Generation, names: Iterable[str]) -> dict[str, Any]:
    """Fields among `names` that the request sets to anything but null."""
    values = [(name, getattr(request, name, None)) for name in names]
    return {name: value for name, value in values if value is not None and value is not UNSET}


def _chat(request: schema.ChatCompletionRequest, common: dict[str, Any], bad_words: list[str]) -> ValidRequest:
    max_tokens = _max_tokens(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    tools = tool_use(request)
    hints = thinking_hints(request)
    kwargs = {**hints.variables, **(request.chat_template_kwargs or {})}
    for name in ("add_generation_prompt", "continue_final_message"):
        value = getattr(request, name)
        if value is not None:
            kwargs[name] = value
    if kwargs.get("continue_final_message"):
        if request.add_generation_prompt:
            raise InvalidRequestError(
                "'continue_final_message' and 'add_generation_prompt' exclude each other.",
                param="continue_final_message",
            )
        kwargs["add_generation_prompt"] = False
    prediction = None
    if request.prediction is not None:
        content = request.prediction.content
        prediction = content if isinstance(content, str) else "".join(part.text for part in content)
    _check_min_tokens(request, max_tokens)
    images: list[ImageSource] = []
    room = ArgumentRoom()
    messages = [template_message(m, i, images, room) for i, m in enumerate(request.messages)]
    return ValidRequest(
        chat=True,
        images=tuple(images),
        prompt=PromptRequest(
            messages=messages,
            tools=tools.offered if tools is not None else None,
            chat_template=request.chat_template,
            chat_template_kwargs=kwargs,
            documents=request.documents,
            reasoning_effort=hints.effort,
            prediction=prediction,
            add_special_tokens=bool(request.add_special_tokens),
            bad_words=bad_words,
        ),
        prompt_token_ids=[],
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        tools=tools,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        include_reasoning=request.include_reasoning is not False
        and not (request.reasoning is not None and request.reasoning.exclude),
        thinking_params=hints.params,
        **common,
    )


def _max_tokens(request: schema.ChatCompletionRequest) -> int | None:
    names = ("max_tokens", "max_completion_tokens", "n_predict")
    given = [(name, value) for name in names if (value := getattr(request, name)) is not None]
    if len(given) > 1:
        raise InvalidRequestError(
            f"'{given[0][0]}' and '{given[1][0]}' say the same; give one of them.", param=given[0][0]
        )
    if not given or given[0][1] == -1:
        return None
    if given[0][1] == 0:
        raise InvalidRequestError("'n_predict' must be -1, or at least 1.", param="n_predict")
    most: int = given[0][1]
    return most


def _completion(request: schema.CompletionRequest, common: dict[str, Any], bad_words: list[str]) -> ValidRequest:
    texts, token_ids = texts_or_token_ids(request.prompt, "prompt")
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequestError("'max_tokens' may be 0 only with 'echo'.", param="max_tokens")
    n = common["n"]
    if request.best_of is not None:
        if request.best_of < n:
            raise InvalidRequestError(f"'best_of' must be at least 'n' ({n}).", param="best_of")
        if request.stream and request.best_of > n:
            raise InvalidRequestError(
                "With 'stream', 'best_of' must be 'n': the best are known at the end.", param="best_of"
            )
    max_tokens = DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    _check_min_tokens(request, max_tokens)
    prompt = None
    if texts or bad_words:
        add_special_tokens = request.add_special_tokens is not False
        prompt = PromptRequest(prompts=texts, add_special_tokens=add_special_tokens, bad_words=bad_words)
    return ValidRequest(
        chat=False,
        prompt=prompt,
        prompt_token_ids=token_ids,
        max_tokens=request.max_tokens,
        default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        logprobs=request.logprobs,
        echo=bool(request.echo),
        best_of=request.best_of,
        **common,
    )


def _check_min_tokens(request: schema.Generation, max_tokens: int | None) -> None:
    if request.min_tokens and max_tokens is not None and request.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"'min_tokens' ({request.min_tokens}) is more than the most tokens allowed ({max_tokens}).",
            param="min_tokens",
        )


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, value in bias.items():
        # Not int(): that takes signs, spaces, underscores and other scripts' digits.
        if not re.fullmatch(r"[0-9]{1,9}", key):
            raise InvalidRequestError(f"'logit_bias' has the key {key!r}; its keys are token ids.", param="logit_bias")
        result[int(key)] = value
    return result


def _strings(given: str | list[str] | None, field: str, most: int) -> list[str]:
    strings = [given] if isinstance(given, str) else given or []
    if len(strings) > most:
        raise InvalidRequestError(f"'{field}' has {len(strings)} strings; at most {most} are supported.", param=field)
    for at, text in enumerate(strings):
        if not 1 <= len(text) <= schema.MAX_STOP_LENGTH:
            place = field if isinstance(given, str) else f"{field}[{at}]"
            raise InvalidRequestError(
                f"'{place}' has {len(text)} characters; 1 to {schema.MAX_STOP_LENGTH} are supported.", param=place
            )
    return strings
