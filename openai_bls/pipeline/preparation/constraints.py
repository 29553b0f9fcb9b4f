"""Constraints on the output of a request: the format that it must match, as a grammar of the model's engine."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from openai_bls.core.engine_types import Grammar
from openai_bls.core.request import Requested, ValidRequest
from openai_bls.output.harmony import final
from openai_bls.output.structured import Format, grammar, has_structural_tags, has_style
from openai_bls.output.tool_parsers.formats import ToolFormat, as_json_array, either
from openai_bls.pipeline.models.registry import ServedModel

# Grammars have threads of their own: slow ones hold up other grammars only.
_GRAMMARS = ThreadPoolExecutor(2, thread_name_prefix="grammar")


async def constrain(request: ValidRequest, model: ServedModel, tail: str) -> Grammar | None:
    """The grammar that the output must match; None if it is free.

    Raises:
        InvalidRequestError: no grammar library of the engine honours all of it.
    """
    found = wanted(request, model, tail)
    if found is None:
        return None
    # A large schema takes a while, and other requests' tokens must not wait for it.
    return await asyncio.get_running_loop().run_in_executor(_GRAMMARS, constraint, found, model)


def wanted(request: ValidRequest, model: ServedModel, tail: str) -> Requested | None:
    """The format that the output must match; None if it is free.

    Args:
        request: the request.
        model: model that the request names.
        tail: tail of the rendered prompt.
    """
    found = _wanted(request, model)
    reasoning = model.formats.reasoning
    if found is None or not request.chat or reasoning is None:
        return found
    # gpt-oss's prompts end like its reasoning, which they never close.
    if not model.formats.harmony and tail.rstrip().endswith(reasoning.end):
        return found
    # The answer, after unrestricted reasoning.
    return Requested(reasoning.constraint(found.format, opened=reasoning.opened_by(tail)), found.param)


def constraint(found: Requested, model: ServedModel) -> Grammar:
    """The grammar that enforces what `wanted` found. Takes milliseconds, for a large schema more.

    Raises:
        InvalidRequestError: no grammar engine that the model's engine has honours all of it.
    """
    return grammar(found.format, model.info, param=found.param)


def tool_format(request: ValidRequest, model: ServedModel) -> ToolFormat | None:
    """The form of tool calls in answers to a request: the model's own, or a JSON array where the grammar that forces
    them has no structural tags, or not the style of their arguments."""
    own, tools = model.formats.tool_format, request.tools
    if own is None or tools is None or not model.supports("grammar"):
        return own
    if enforces(model, own):
        return own
    return as_json_array(own) if tools.required or request.structured is not None else own


def enforces(model: ServedModel, calls: ToolFormat) -> bool:
    """True if the engine's grammars have all that the form of calls is made of."""
    return has_structural_tags(model.info) and has_style(model.info, calls.style)


def _wanted(request: ValidRequest, model: ServedModel) -> Requested | None:
    structured, tools = request.structured, request.tools
    calls: Format | None = None
    written = tool_format(request, model)
    if tools is not None and written is not None and model.supports("grammar"):
        if tools.required or tools.checked or structured is not None:
            calls = written.constraint(
                tools.callable,
                # Where the text must match something as well, it is that or calls, no mixture.
                at_least_one=tools.required or structured is not None,
                name=tools.name,
                # A call ends gpt-oss's turn.
                parallel=request.parallel_tool_calls and not model.formats.harmony,
            )
        if tools.required:
            structured = None
    if structured is not None and model.formats.harmony and request.chat:
        structured = Requested(final(structured.format), structured.param)
    if calls is None:
        return structured
    if structured is None:
        return Requested(calls, "tools")
    array = either(structured.format, calls) if not has_structural_tags(model.info) else None
    return Requested(array or {"type": "or", "elements": [structured.format, calls]}, structured.param)
