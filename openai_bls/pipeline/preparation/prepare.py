"""Preparation of a request for the engine: check, load images, tokenize, constrain, sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.core.request import ValidRequest
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.output.answer_stops import AnswerStops
from openai_bls.output.events import OutputParser
from openai_bls.output.stops import StopStrings
from openai_bls.output.tool_parsers.formats import ToolFormat
from openai_bls.pipeline.generation.echo import Echo, EchoingSequence, TakeTurns
from openai_bls.pipeline.generation.sequence import Sequence
from openai_bls.pipeline.generation.writer import Writer
from openai_bls.pipeline.models.registry import ServedModel, Target
from openai_bls.pipeline.preparation.checks import check, check_with_grammar, stop_token_ids, unsupported
from openai_bls.pipeline.preparation.constraints import Constraint, constrain, tool_format
from openai_bls.pipeline.preparation.echoed import check_echoed
from openai_bls.pipeline.preparation.images import LoadImages
from openai_bls.pipeline.preparation.prompts import Prompts, tokenize
from openai_bls.pipeline.slices import Turns

WriterT = TypeVar("WriterT", bound=Writer)

_NEUTRAL_SAMPLING = SamplingParams()


async def prepare(
    request: ValidRequest,
    target: Target,
    settings: OpenAiBlsSettings,
    make_writer: Callable[[], WriterT],
    load_images: LoadImages,
    key: str,
    turns: Turns,
) -> tuple[WriterT, list[Sequence], Prompts]:
    """Prepare a valid request for its submission to the engine.

    Args:
        request: valid request of an API.
        target: the model that it names.
        settings: limits of the server.
        make_writer: called once the request is known to be acceptable, before anything is made per sequence.
        load_images: called if it has images.
        key: name of its API key.
        turns: turns at the event loop.

    Raises:
        ApiError: the request cannot be honoured; nothing has been written.
    """
    check(request, target.model, settings)
    writer = make_writer()
    await target.model.engine.ready()
    images = await load_images(request.images) if request.images else ()
    prompts = await tokenize(request, target.model, images, key=key)
    check_echoed(request, map(len, prompts.token_ids), settings.max_body_bytes_in_flight)
    constraint = await constrain(request, target.model, prompts.tail, key)
    everywhere = settings.stop_strings == "output"
    return writer, make_sequences(request, target, prompts, constraint, writer, key, everywhere, turns), prompts


def make_sequences(
    request: ValidRequest,
    target: Target,
    prompts: Prompts,
    constraint: Constraint | None,
    writer: Writer,
    key: str,
    stops_everywhere: bool,
    turns: Turns,
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
        turns: turns at the event loop.

    Raises:
        InvalidRequestError: a sampling parameter that the engine does not honour.
    """
    model, tools = target.model, request.tools
    grammar = None if constraint is None else constraint.grammar
    named_tool = tools is not None and tools.name is not None
    calls = tool_format(request, model)
    forced = tools is not None and tools.required and calls is not None
    if constraint is not None:
        check_with_grammar(request, model, constraint.wanted.param)
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
    new_parser = _parsers(request, model, calls, reasoning_open=reasoning_open, held=held)
    result: list[Sequence] = []
    for at, prompt in enumerate(prompts.token_ids):
        kind: Callable[..., Sequence] = Sequence
        if request.echo:
            kind = partial(EchoingSequence, echo=_echo(request, model, at, prompt, partial(turns.take, key=key)))
        for index in range(len(result), len(result) + request.candidates):
            parser = new_parser()
            matcher = stops.matcher()
            if parser is not None and matcher is not None and not stops_everywhere:
                parser, matcher = AnswerStops(parser, matcher, stops.marks), None
            sequence = kind(
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


def _parsers(
    request: ValidRequest, model: ServedModel, calls: ToolFormat | None, *, reasoning_open: bool, held: bool
) -> Callable[[], OutputParser | None]:
    if not request.chat:
        return lambda: None
    offered = None if request.tools is None else request.tools.offered
    return model.formats.parsers(tools=offered, reasoning_open=reasoning_open, tool_format=calls, held=held)


def _echo(request: ValidRequest, model: ServedModel, at: int, prompt: list[int], take_turns: TakeTurns) -> Echo:
    """Prompt number `at` as it was given, or the text of its tokens where these count."""
    texts = request.prompt.prompts if request.prompt is not None else None
    as_given = texts and request.logprobs is None and request.truncate_prompt_tokens is None
    # Special tokens of a text are the tokenizer's additions, those among ids the client's own.
    detokenizer = model.detokenizers.new(skip_special_tokens=bool(texts))
    text = texts[at] if texts and as_given else None
    return Echo(prompt, detokenizer, take_turns, text, logprobs=request.logprobs is not None)


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
        stop_token_ids=stop_token_ids(request, model),
        bad_words=prompts.bad_words,
        min_tokens=min(request.min_tokens, max_tokens),
        allowed_token_ids=request.allowed_token_ids,
        logprobs=logprobs,
        # Once for all choices of a prompt: they are large, and an engine works each out over the whole vocabulary.
        prompt_logprobs=request.logprobs if request.echo and index % request.candidates == 0 else None,
        grammar=constraint,
        lora_name=target.lora_name,
        prediction=prompts.prediction,
        media=prompts.media,
        # The queue before the engine has it in any case.
        priority=request.priority if model.supports("priority") else 0,
        kv_transfer_params=request.kv_transfer_params,
        owner="" if constraint is None and prompts.media is None else key,
    )
