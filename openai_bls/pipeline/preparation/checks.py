"""Checks of a request against the model that it names, before tokenization, and what they refuse by name."""

from __future__ import annotations

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ToolUse, ValidRequest
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.output.stops import check_reachable
from openai_bls.pipeline.models.registry import ServedModel
from openai_bls.pipeline.preparation.constraints import enforces, input_grammars
from openai_bls.pipeline.preparation.images import check_images


def check(request: ValidRequest, model: ServedModel, settings: OpenAiBlsSettings) -> None:
    """Check a request before tokenization.

    Raises:
        InvalidRequestError: the engine or the settings do not allow it; `param` names the field.
    """
    if request.images:
        check_images(request, model)
    check_supported(request, model)
    _check_stops(request, model)
    sequences = request.prompt_count * request.candidates
    if sequences > settings.max_choices:
        raise InvalidRequestError(
            f"The request asks for {sequences} sequences; at most {settings.max_choices} are supported.",
            param="n" if request.best_of is None else "best_of",
        )
    if request.prompt is not None and request.prompt.chat_template and not settings.trust_chat_template:
        raise InvalidRequestError(
            "'chat_template' is not taken from requests here: a template is a program. The parameter "
            "'trust_chat_template' of the model openai_bls allows it.",
            param="chat_template",
        )


def _check_stops(request: ValidRequest, model: ServedModel) -> None:
    """Refuse what can never end the answer."""
    for at, token_id in enumerate(request.stop_token_ids):
        if token_id >= model.info.vocab_size:
            raise InvalidRequestError(
                f"'stop_token_ids[{at}]' is {token_id}; the vocabulary has {model.info.vocab_size} tokens.",
                param=f"stop_token_ids[{at}]",
            )
    ends = stop_token_ids(request, model)
    check_reachable(request.stop, model.detokenizers.special, ends, "stop", "'ignore_eos': true")


def stop_token_ids(request: ValidRequest, model: ServedModel) -> tuple[int, ...]:
    """Tokens that end the answer, each once."""
    own = () if request.ignore_eos else model.info.eos_token_ids
    return tuple(dict.fromkeys((*request.stop_token_ids, *own)))


def unsupported(model: ServedModel, param: str) -> InvalidRequestError:
    """The refusal of a field that the engine of `model` does not honour."""
    return InvalidRequestError(
        f"'{param}' is not supported by the engine of this model ({model.info.engine}).",
        param=param,
        code="unsupported_parameter",
    )


def check_supported(request: ValidRequest, model: ServedModel) -> None:
    """Refuse a request that the engine does not honour, as far as that is known before tokenization.

    Raises:
        InvalidRequestError: `param` names the field.
    """
    info = model.info
    for name in ("min_tokens", "allowed_token_ids", "kv_transfer_params"):
        if getattr(request, name) and not model.supports(name):
            raise unsupported(model, name)
    prompt = request.prompt
    if prompt is not None and prompt.bad_words and not model.supports("bad_words"):
        raise unsupported(model, "bad_words")
    if prompt is not None and prompt.prediction is not None and not model.supports("prediction"):
        raise InvalidRequestError(
            f"'prediction' needs speculative decoding, which is off in the engine of this model ({model.info.engine}): "
            "the embedded engine has it with OPENAI_BLS_ENGINE_SPECULATIVE_METHOD=ngram.",
            param="prediction",
            code="unsupported_parameter",
        )
    _check_logprobs(request, model)
    if request.candidates > request.n and not model.supports("logprobs"):
        raise unsupported(model, "best_of")
    if request.structured is not None and not model.supports("grammar"):
        raise unsupported(model, request.structured.param)
    for token_id in request.sampling.logit_bias:
        if token_id >= info.vocab_size:
            raise InvalidRequestError(
                f"'logit_bias' holds the token id {token_id}; the vocabulary has {info.vocab_size}.", param="logit_bias"
            )
    if request.tools is not None:
        _check_tools(request.tools, model)


def _check_logprobs(request: ValidRequest, model: ServedModel) -> None:
    if request.logprobs is None:
        return
    if not model.supports("logprobs"):
        raise unsupported(model, "logprobs")
    if request.echo and not model.supports("prompt_logprobs"):
        raise InvalidRequestError(
            f"'logprobs' of a prompt, with 'echo', are not supported by the engine of this model "
            f"({model.info.engine}).",
            param="logprobs",
            code="unsupported_parameter",
        )
    if request.logprobs > model.info.max_logprobs:
        param = "top_logprobs" if request.chat else "logprobs"
        raise InvalidRequestError(
            f"'{param}' is {request.logprobs}; at most {model.info.max_logprobs} are supported.", param=param
        )


def _check_tools(tools: ToolUse, model: ServedModel) -> None:
    own = model.formats.tool_format
    if own is None:
        raise InvalidRequestError(
            "'tools' cannot be used with this model: how it writes tool calls is not known from its chat template. "
            "The parameter 'tool_call_parser' of the model openai_bls can name a format.",
            param="tools",
            code="unsupported_parameter",
        )
    if model.supports("grammar") and enforces(model, own):
        return
    for held in input_grammars(tools).values():
        raise InvalidRequestError(
            f"'{held.param}': a grammar of a custom tool's input cannot be held by the engine of this model "
            f"({model.info.engine}{f', with {model.info.grammar_backend}' if model.info.grammar_backend else ''}); "
            "without 'format' the input is free text.",
            param=held.param,
            code="unsupported_parameter",
        )
    if (tools.required and not model.supports("grammar")) or (not tools.required and tools.callable != tools.offered):
        raise unsupported(model, "tool_choice")
    if tools.checked and not tools.required:
        strict = (
            f"tools[{at}].function.strict" for at, one in enumerate(tools.offered) if one["function"].get("strict")
        )
        raise unsupported(model, next(strict, "tool_choice"))


def check_with_grammar(request: ValidRequest, model: ServedModel, grammar_param: str) -> None:
    """Refuse fields that the engine does otherwise under a grammar, by the client's names for them.

    Args:
        request: request whose answer is held to a grammar.
        model: its model.
        grammar_param: field of the request that the grammar comes from.
    """
    given = {
        "logprobs": "logprobs" if request.logprobs is not None else "best_of" * (request.candidates > request.n),
        "bad_words": "bad_words" if request.prompt is not None and request.prompt.bad_words else "",
        "allowed_token_ids": "allowed_token_ids" if request.allowed_token_ids else "",
    }
    for field in model.info.grammar_excludes:
        if param := given[field]:
            raise InvalidRequestError(
                f"'{param}' together with '{grammar_param}' is not supported by the engine of this model "
                f"({model.info.engine}): leave one of them out.",
                param=param,
                code="unsupported_parameter",
            )
