"""The render endpoints: a request is checked and prepared as for its generation, which does not begin."""

from __future__ import annotations

import time

import msgspec

from openai_bls.api.chat.generate_request import (
    GenerateRequest,
    SamplingParams,
    StreamOptions,
    StructuredOutputsParams,
)
from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.common.one_shot import admitted
from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.preparation.checks import check
from openai_bls.pipeline.preparation.constraints import constrain
from openai_bls.pipeline.preparation.prepare import generation_request
from openai_bls.pipeline.preparation.prompts import tokenize
from openai_bls.pipeline.service import Service, within

_DEFAULTS = msgspec.structs.asdict(SamplingParams())


async def rendered(
    service: Service, context: RequestContext, request: ValidRequest, target: Target, id_prefix: str
) -> list[GenerateRequest]:
    """Request that the engine would get, for each prompt of `request`.

    Args:
        service: service that takes the request.
        context: context of the request.
        request: request to an engine.
        target: what its `model` names.
        id_prefix: beginning of the ids of the API's answers.

    Raises:
        ApiError: the generation would be refused, or preprocessing cannot be reached.
    """
    check(request, target.model, service.settings)
    if request.images:
        raise InvalidRequestError(
            "Images are not rendered: token ids alone are no prompt with images. Send the request itself instead.",
            param=request.images[0].param,
            code="unsupported_content",
        )
    with admitted(service, context, target.name):
        deadline = context.deadline(request.timeout, time.monotonic())
        return await within(deadline, _prepared(request, target, context.key, id_prefix))


async def rendered_one(
    service: Service, context: RequestContext, request: ValidRequest, target: Target, id_prefix: str
) -> GenerateRequest:
    """The same of a request that has one prompt."""
    (only,) = await rendered(service, context, request, target, id_prefix)
    return only


async def _prepared(request: ValidRequest, target: Target, key: str, id_prefix: str) -> list[GenerateRequest]:
    await target.model.engine.ready()
    prompts = await tokenize(request, target.model, key=key)
    constraint = await constrain(request, target.model, prompts.tail, key)
    structured = None
    if constraint is not None:
        tag = encode({"type": "structural_tag", "format": constraint.wanted.format}).decode()
        structured = StructuredOutputsParams(tag)
    request_id = new_id(id_prefix)
    requests = []
    for at, prompt in enumerate(prompts.token_ids):
        sequence = generation_request(request, target, 0, prompt, prompts, constraint and constraint.grammar)
        requests.append(
            GenerateRequest(
                request_id=request_id if len(prompts.token_ids) == 1 else f"{request_id}-{at}",
                token_ids=prompt,
                sampling_params=_sampling_params(request, sequence, structured),
                model=request.model,
                stream=request.stream,
                stream_options=StreamOptions(request.include_usage, request.continuous_usage_stats)
                if request.stream
                else None,
                priority=request.priority,
                kv_transfer_params=request.kv_transfer_params,
            )
        )
    return requests


def _sampling_params(
    request: ValidRequest, sequence: GenerationRequest, structured: StructuredOutputsParams | None
) -> SamplingParams:
    values = {
        **msgspec.structs.asdict(sequence.sampling),
        "n": request.n,
        # As the client gave it: without one the engine draws one.
        "seed": request.sampling.seed,
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_token_ids),
        "ignore_eos": request.ignore_eos,
        "max_tokens": sequence.max_tokens,
        "min_tokens": sequence.min_tokens,
        "logprobs": request.logprobs,
        "prompt_logprobs": sequence.prompt_logprobs,
        "skip_special_tokens": request.skip_special_tokens,
        "include_stop_str_in_output": request.include_stop_str_in_output,
        "structured_outputs": structured,
        "bad_words": [] if request.prompt is None else request.prompt.bad_words,
        "allowed_token_ids": list(request.allowed_token_ids),
    }
    # msgspec leaves out what is the default itself; an equal number is another object.
    return SamplingParams(**{name: value for name, value in values.items() if value not in (_DEFAULTS[name], [], {})})
