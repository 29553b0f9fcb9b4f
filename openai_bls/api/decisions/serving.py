"""Serving of decisions: the prompts of the questions, what their labels are to the model, and the answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from openai_bls.api.common.large_bodies import is_large, parsed
from openai_bls.api.common.one_shot import admitted
from openai_bls.api.decisions import labels, questions
from openai_bls.api.decisions.labels import Tokens
from openai_bls.api.decisions.parsing import Asked, joined, own_place, parse
from openai_bls.api.decisions.reads import FIELDS, Read, Reader
from openai_bls.api.decisions.schema import Decision, DecisionUsage, InputDetails, OutputDetails
from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import ContextLengthError, InvalidRequestError
from openai_bls.core.media import Image, ImageSource
from openai_bls.core.request import ValidRequest
from openai_bls.core.usage import Usage
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.media.budget import MediaLease
from openai_bls.pipeline.models.registry import ServedModel
from openai_bls.pipeline.preparation.checks import check
from openai_bls.pipeline.preparation.prompts import check_token_ids, tokenize
from openai_bls.pipeline.service import Service

MAX_READ_TOKENS = 1 << 23
"""Tokens of all reads of a request, those before a token of a label included, of which each may need one."""


async def decide(service: Service, context: RequestContext, body: dict[str, Any]) -> Decision:
    """The answers to the questions. Cancelling this ends the engine's work.

    Raises:
        ApiError: the request is bad, the model cannot honour it, or the engine failed.
    """
    began_at = time.monotonic()
    max_items, unknown = service.models.longest_context, service.settings.unknown_fields
    asked = await parsed(lambda: parse(body, max_items, unknown), large=is_large(body), key=context.key)
    target = await service.look_for(context, asked.input)
    model = target.model
    check_model(model)
    for ask in asked.asks:
        check(msgspec.structs.replace(ask, images=(*asked.input.images, *ask.images)), model, service.settings)
    with admitted(service, context, target.name) as tally, service.images.budget.lease(context.key) as lease:
        await model.engine.ready()
        tokens = await label_tokens(asked, model, context.key)
        images = await _images(service, context.key, lease, asked)
        reads = await _reads(asked, model, images, tokens, context.key)
        reader = Reader(
            model.engine,
            service.admission(model),
            context.key,
            most=service.settings.max_choices,
            likeliest=model.info.max_logprobs,
            lora_name=target.lora_name,
            deadline=context.deadline(None, began_at),
        )
        reader.begin(reads)
        prompt_tokens = sum(len(read.prompt) for read in reads)
        tally.lease.take_tokens(prompt_tokens + sum(len(read.steps) for read in reads), prompt_tokens)
        tally.prompt_tokens = prompt_tokens
        found = await reader.read(reads)
        tally.usage = Usage.of(prompt_tokens, 0, cached=reader.cached_tokens)
    chances = [labels.probabilities(labels.logprobs(*one)) for one in zip(tokens, found, strict=True)]
    answers = [labels.answer(question, one) for question, one in zip(asked.questions, chances, strict=True)]
    usage = DecisionUsage(prompt_tokens, InputDetails(reader.cached_tokens, 0), 0, OutputDetails(0), prompt_tokens)
    return Decision(target.name, answers, usage)


def check_model(model: ServedModel) -> None:
    """Refuse a model whose engine tells no log-probabilities of tokens that are named.

    Raises:
        InvalidRequestError: it does not.
    """
    model.require_task("generate")
    for field in FIELDS:
        if not model.supports(field):
            raise InvalidRequestError(
                f"Decisions need '{field}', which is not supported by the engine of this model ({model.info.engine}).",
                param="model",
                code="unsupported_parameter",
            )


@contextmanager
def own_places() -> Iterator[None]:
    """Name the fields at fault as this API does, in the errors raised inside."""
    try:
        yield
    except InvalidRequestError as error:
        own_place(error)
        raise


async def label_tokens(asked: Asked, model: ServedModel, key: str) -> list[list[Tokens]]:
    """Token ids of the labels of each question, as an answer has them at its beginning.

    Raises:
        InvalidRequestError: the tokenizer leaves nothing of a label, or makes two the same; `param` is its path.
    """
    texts = [questions.labels(question) for question in asked.questions]
    each = list(dict.fromkeys(itertools.chain.from_iterable(texts)))
    result = await model.tokenize(PromptRequest(prompts=each, add_special_tokens=False), "questions", key=key)
    check_token_ids(result.prompt_token_ids, model, "questions")
    known = {text: tuple(ids) for text, ids in zip(each, result.prompt_token_ids, strict=True)}
    found = [[known[text] for text in of_question] for of_question in texts]
    for at, (question, rows) in enumerate(zip(asked.questions, found, strict=True)):
        seen: set[Tokens] = set()
        for number, row in enumerate(rows):
            if not row or row in seen:
                where = questions.place(question, at, number)
                fault = "no tokens" if not row else "the same tokens as another label"
                raise InvalidRequestError(f"'{where}' is {fault} to this model.", param=where)
            seen.add(row)
    return found


async def _images(service: Service, key: str, lease: MediaLease, asked: Asked) -> dict[ImageSource, Image]:
    """The images of the input and of all questions."""
    sources = tuple(source for request in (asked.input, *asked.asks) for source in request.images)
    loaded = await service.images.load(sources, key, lease) if sources else ()
    return dict(zip(sources, loaded, strict=True))


async def _reads(
    asked: Asked, model: ServedModel, images: Mapping[ImageSource, Image], labels_of: Sequence[list[Tokens]], key: str
) -> list[Read]:
    """The prompt of each question, with its labels.

    Raises:
        ApiError: a prompt is bad, or its labels take too many reads.
    """
    found: list[Read] = []
    tokens = 0
    # One after the other: each text is as large as the input, and what is too much is seen soon.
    for ask, rows in zip(asked.asks, labels_of, strict=True):
        with own_places():
            found.append(await _read(joined(asked.input, ask), model, images, rows, key))
        # Before any of the steps is made.
        tokens += labels.read_tokens(rows, len(found[-1].prompt))
        if tokens > MAX_READ_TOKENS:
            raise InvalidRequestError(
                "The tokens of the labels times those of the prompts before them are more than "
                f"{MAX_READ_TOKENS}: ask fewer questions at a time.",
                param="questions",
            )
    return found


async def _read(
    request: ValidRequest, model: ServedModel, images: Mapping[ImageSource, Image], rows: list[Tokens], key: str
) -> Read:
    prompts = await tokenize(request, model, tuple(images[source] for source in request.images), key=key)
    length, limit = len(prompts.token_ids[0]), model.info.max_model_len
    if length + max(map(len, rows)) > limit:
        raise ContextLengthError(None, prompt_tokens=length, max_model_len=limit, param="input")
    reasoning = model.formats.reasoning
    if model.formats.harmony or (reasoning is not None and reasoning.opened_by(prompts.tail)):
        raise InvalidRequestError(
            f"The model {model.info.model_name!r} thinks before each answer, so that no label is the beginning of one.",
            param="model",
            code="unsupported_endpoint",
        )
    return Read(prompts.token_ids[0], rows, prompts.media)
