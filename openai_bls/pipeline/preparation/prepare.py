"""Preparation of a request for the engine: check, load images, tokenize, constrain, sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from openai_bls.core.engine_types import GenerationRequest, Grammar, PromptResult, SamplingParams
from openai_bls.core.errors import ContextLengthError, InvalidRequestError
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.core.request import ToolUse, ValidRequest
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.output.answer_stops import AnswerStops
from openai_bls.output.events import OutputParser
from openai_bls.output.stops import StopStrings, check_reachable
from openai_bls.output.tool_parsers.formats import ToolFormat
from openai_bls.pipeline.generation.sequence import Echo, Sequence, Writer
from openai_bls.pipeline.models.registry import ServedModel, Target
from openai_bls.pipeline.preparation.constraints import Constraint, constrain, enforces, input_grammars, tool_format
from openai_bls.pipeline.preparation.images import LoadImages, check_images, media_prompt, named_images, with_sizes

WriterT = TypeVar("WriterT", bound=Writer)

_NEUTRAL_SAMPLING = SamplingParams()

# Enough for a marker and the white space around it, whatever the tokenizer makes of them.
_TAIL_TOKENS = 24


class Prompts(NamedTuple):
    """Tokenized prompts of a request."""

    token_ids: list[list[int]]
    """One list per prompt."""
    bad_words: list[list[int]]
    """One list per token sequence that must not be generated."""
    prediction: list[int]
    """Token ids that the output is likely to be."""
    tail: str
    """End of the (first) rendered prompt; see `prompt_tail`."""
    media: MediaPrompt | None = None
    """Images of the (one) prompt; None if it is text alone."""


async def prepare(
    request: ValidRequest,
    target: Target,
    settings: OpenAiBlsSettings,
    make_writer: Callable[[], WriterT],
    load_images: LoadImages,
    key: str,
) -> tuple[WriterT, list[Sequence], Prompts]:
    """Everything between a valid request and its submission to the engine.

    Args:
        request: valid request of an API.
        target: the model that it names.
        settings: limits of the server.
        make_writer: called once the request is known to be acceptable, before anything is made per sequence.
        load_images: called if it has images.
        key: name of its API key.

    Raises:
        ApiError: the request cannot be honoured; nothing has been written.
    """
    check(request, target.model, settings)
    writer = make_writer()
    await target.model.engine.ready()
    images = await load_images(request.images) if request.images else ()
    prompts = await tokenize(request, target.model, images, key=key)
    constraint = await constrain(request, target.model, prompts.tail, key)
    everywhere = settings.stop_strings == "output"
    return writer, make_sequences(request, target, prompts, constraint, writer, key, everywhere), prompts


# --- check ---


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
    ends = _stop_token_ids(request, model)
    check_reachable(request.stop, model.detokenizers.special, ends, "stop", "'ignore_eos': true")


def _stop_token_ids(request: ValidRequest, model: ServedModel) -> tuple[int, ...]:
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


# --- tokenize ---


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
    if request.truncate_prompt_tokens is not None:
        prompts = [prompt[-request.truncate_prompt_tokens :] for prompt in prompts]
    for at, prompt in enumerate(prompts):
        check_length(request, model, prompt, "messages" if request.chat else element("prompt", at, prompts))
    media = media_prompt(images, result) if images else None
    return Prompts(prompts, result.bad_words, result.prediction, prompt_tail(request, model, prompts[0]), media)


def _check_allowed(request: ValidRequest, model: ServedModel, bad_words: list[list[int]]) -> None:
    """Refuse allowed tokens that are outside the vocabulary, or may all be forbidden at once."""
    if not request.allowed_token_ids:
        return
    check_token_ids([list(request.allowed_token_ids)], model, "allowed_token_ids")
    forbidden = {word[-1] for word in bad_words}
    if request.min_tokens:
        forbidden.update(_stop_token_ids(request, model))
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


# --- sequences ---


def make_sequences(
    request: ValidRequest,
    target: Target,
    prompts: Prompts,
    constraint: Constraint | None,
    writer: Writer,
    key: str,
    stops_everywhere: bool,
) -> list[Sequence]:
    """All sequences of a request; those of one prompt follow each other.

    Args:
        request: the request.
        target: model that it names.
        prompts: its prompts.
        constraint: grammar of its output.
        writer: receiver of the events.
        key: name of the request's API key.
        stops_everywhere: stop strings are searched in thoughts and calls, too.

    Raises:
        InvalidRequestError: a sampling parameter that the engine does not honour.
    """
    model, tools = target.model, request.tools
    grammar = None if constraint is None else constraint.grammar
    named_tool = tools is not None and tools.name is not None
    calls = tool_format(request, model)
    forced = tools is not None and tools.required and calls is not None
    if constraint is not None:
        _check_with_grammar(request, model, constraint.wanted.param)
    kept: frozenset[str] = frozenset()
    reasoning_open = held = False
    if request.chat:
        kept = model.formats.kept_special(tools is not None)
    if request.chat and (reasoning := model.formats.reasoning) is not None:
        reasoning_open = reasoning.opened_by(prompts.tail)
        # A grammar allows no reasoning that is not opened, and what has been told cannot be taken back. Of a text that
        # is held no stop string would be found before its end.
        told = request.stream or request.in_pieces or request.stop
        held = not told and grammar is None and not reasoning.closed_by(prompts.tail)
    stops = StopStrings(
        # An answer that is calls alone has no text to search.
        () if forced and not stops_everywhere else request.stop,
        model.detokenizers,
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        keep_special=kept,
    )
    result: list[Sequence] = []
    for at, prompt in enumerate(prompts.token_ids):
        echo = _echo(request, model, at, prompt) if request.echo else None
        for index in range(len(result), len(result) + request.candidates):
            parser = _parser(request, model, calls, reasoning_open=reasoning_open, held=held)
            matcher = stops.matcher()
            if parser is not None and matcher is not None and not stops_everywhere:
                parser, matcher = AnswerStops(parser, matcher, stops.marks), None
            sequence = Sequence(
                index,
                generation_request(request, target, index, prompt, prompts, grammar, key),
                stops.detokenizer(prompt),
                writer,
                stops=matcher,
                marks=stops.marks,
                parser=parser,
                reasoning_open=reasoning_open,
                include_reasoning=request.include_reasoning,
                parallel_tool_calls=request.parallel_tool_calls,
                forced=forced,
                named_tool=named_tool,
                echo=echo,
                custom_tools=() if tools is None else tools.custom,
                refusable_param=_refusable_param(request, constraint),
            )
            result.append(sequence)
    return result


def _refusable_param(request: ValidRequest, constraint: Constraint | None) -> str | None:
    """The field of a request that an engine refuses by itself: an image, or where its grammar comes from."""
    if request.images:
        return request.images[0].param
    return None if constraint is None else constraint.wanted.param


def _check_with_grammar(request: ValidRequest, model: ServedModel, grammar_param: str) -> None:
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


def _parser(
    request: ValidRequest, model: ServedModel, calls: ToolFormat | None, *, reasoning_open: bool, held: bool
) -> OutputParser | None:
    if not request.chat:
        return None
    offered = None if request.tools is None else request.tools.offered
    return model.formats.parser(tools=offered, reasoning_open=reasoning_open, tool_format=calls, held=held)


def _echo(request: ValidRequest, model: ServedModel, at: int, prompt: list[int]) -> Echo:
    """Prompt number `at` as it was given, or the text of its tokens where these count."""
    texts = request.prompt.prompts if request.prompt is not None else None
    if texts and request.logprobs is None and request.truncate_prompt_tokens is None:
        return Echo(texts[at])
    # Special tokens of a text are the tokenizer's additions, those among ids the client's own.
    return Echo.decoded(prompt, model.detokenizers.new(skip_special_tokens=bool(texts)))


def sampling(request: ValidRequest, model: ServedModel, index: int) -> SamplingParams:
    """The request's sampling parameters over the checkpoint's defaults, for its sequence `index`.

    Raises:
        InvalidRequestError: one that the engine does not honour.
    """
    given: dict[str, Any] = {name: getattr(request.sampling, name) for name in request.sampling_given}
    if request.sampling.seed is not None:
        # Every choice has its own seed, or they would all be the same.
        given["seed"] = (request.sampling.seed + index) % 2**64
    for name, value in given.items():
        # A value that changes nothing is no reason to refuse.
        if not model.supports(name) and value != getattr(_NEUTRAL_SAMPLING, name):
            raise unsupported(model, name)
    return msgspec.structs.replace(model.info.sampling_defaults, **given)


def generation_request(
    request: ValidRequest,
    target: Target,
    index: int,
    prompt: list[int],
    prompts: Prompts,
    constraint: Grammar | None,
    key: str = "",
) -> GenerationRequest:
    """The engine request of sequence `index`.

    Args:
        request: the request.
        target: model that it names.
        index: number of the sequence.
        prompt: token ids of its prompt, which is one of `prompts`.
        prompts: all that the request's text has become.
        constraint: grammar that the output must match.
        key: name of the API key.

    Raises:
        InvalidRequestError: a sampling parameter that the engine does not honour.
    """
    model = target.model
    info = model.info
    # An upper bound: the answer ends where the context does.
    room = info.max_model_len - len(prompt)
    wanted = request.default_max_tokens or room if request.max_tokens is None else request.max_tokens
    max_tokens = min(room, wanted)
    logprobs = request.logprobs
    if logprobs is None and request.candidates > request.n:
        # By which the best are found.
        logprobs = 0
    return GenerationRequest(
        request_id=model.engine.new_request_id(),
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        sampling=sampling(request, model, index),
        stop_token_ids=_stop_token_ids(request, model),
        bad_words=tuple(tuple(word) for word in prompts.bad_words),
        min_tokens=min(request.min_tokens, max_tokens),
        allowed_token_ids=request.allowed_token_ids,
        logprobs=logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        grammar=constraint,
        lora_name=target.lora_name,
        prediction=tuple(prompts.prediction),
        media=prompts.media,
        # The queue before the engine has it in any case.
        priority=request.priority if model.supports("priority") else 0,
        kv_transfer_params=request.kv_transfer_params,
        owner="" if constraint is None and prompts.media is None else key,
    )
