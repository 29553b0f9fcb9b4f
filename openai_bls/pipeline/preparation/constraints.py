"""Constraints on the output of a request: the format that it must match, as a grammar of the model's engine."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

import msgspec

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.core.request import Requested, ToolGrammar, ToolUse, ValidRequest
from openai_bls.output.harmony import final
from openai_bls.output.structured import Format, FormatError, grammar, has_excludes, has_structural_tags, has_style
from openai_bls.output.tool_parsers.formats import ToolFormat, as_json_array, either, names_of
from openai_bls.pipeline.models.registry import ServedModel

INVALID_GRAMMAR = "invalid_grammar"
"""Code of the refusal of a custom tool's grammar that is none, or cannot be held."""

_ANY_OBJECT = {"type": "object"}
_TOOLS = "tools"
# Grammars have separate threads: slow ones hold up other grammars of their key only.
_GRAMMARS = FairExecutor(2, "grammar")


class Constraint(NamedTuple):
    """Format that the output must match."""

    wanted: Requested
    grammar: Grammar
    """The grammar that enforces it."""


async def constrain(request: ValidRequest, model: ServedModel, tail: str, key: str) -> Constraint | None:
    """The grammar that the output must match; None if it is free.

    Args:
        request: the request.
        model: model that the request names.
        tail: tail of the rendered prompt.
        key: name of the API key, by which grammars take turns. One whose client leaves before its turn is left out.

    Raises:
        InvalidRequestError: no grammar library of the engine honours all of it.
    """
    if request.structured is None and (request.tools is None or not _is_held(request.tools)):
        return None
    # A large schema takes a while, and other requests' tokens must not wait for it.
    return await asyncio.wrap_future(_GRAMMARS.submit(key, partial(constrained, request, model, tail)))


def constrained(request: ValidRequest, model: ServedModel, tail: str) -> Constraint | None:
    """Grammar of `constrain`. Takes milliseconds, for a large schema more."""
    tools = request.tools
    if tools is not None:
        _check_grammars(tools, request, model)
    if tools is None or tools.required or not _is_held(tools):
        return _enforced(request, model, tail)
    # That one call is to be held is no reason to turn away a function whose schema cannot be.
    relaxed = msgspec.structs.replace(request, tools=_relaxed(tools, request, model))
    try:
        return _enforced(relaxed, model, tail)
    except InvalidRequestError:
        free = msgspec.structs.replace(request, tools=_relaxed(tools, request, model, every=True))
        if free == relaxed:
            raise
        return _enforced(free, model, tail)


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
    if not model.formats.harmony and reasoning.closed_by(tail):
        return found
    # The answer, after reasoning that is free but for calls, where one would end it unchecked.
    held = request.tools is not None and _is_held(request.tools) and has_excludes(model.info)
    excludes = model.formats.ending_calls(tool_format(request, model)) if held else ()
    opened = reasoning.opened_by(tail)
    return Requested(reasoning.constraint(found.format, opened=opened, excludes=excludes), found.param)


def constraint(found: Requested, model: ServedModel) -> Grammar:
    """The grammar that enforces what `wanted` found.

    Raises:
        InvalidRequestError: no grammar engine that the model's engine has honours all of it.
    """
    return grammar(found.format, model.info, param=found.param)


def _enforced(request: ValidRequest, model: ServedModel, tail: str) -> Constraint | None:
    found = wanted(request, model, tail)
    if found is None:
        return None
    try:
        return Constraint(found, constraint(found, model))
    except InvalidRequestError as error:
        if request.tools is not None and error.param == _TOOLS:
            _check_arguments(request.tools, request, model)
        raise


def _check_arguments(tools: ToolUse, request: ValidRequest, model: ServedModel) -> None:
    """Refuse the arguments of a function that cannot be held, each by its own field."""
    written = tool_format(request, model)
    if written is None:
        return
    callable_ = {tool["function"]["name"]: tool["function"] for tool in tools.callable}
    for at, tool in enumerate(tools.offered):
        found = callable_.get(tool["function"]["name"], {})
        if parameters := found.get("parameters"):
            arguments = written.arguments(parameters, strict=bool(found.get("strict")))
            grammar(arguments, model.info, param=f"{_TOOLS}[{at}].function.parameters")


def _is_held(tools: ToolUse) -> bool:
    return tools.required or tools.checked or bool(input_grammars(tools))


def input_grammars(tools: ToolUse) -> dict[str, ToolGrammar]:
    """The grammars of the custom tools that may be called, by the tool's name."""
    named = names_of(tools.callable)
    found = {name: tools.custom.get(name) for name in named if tools.name in (None, name)}
    return {name: one for name, one in found.items() if one is not None}


def _check_grammars(tools: ToolUse, request: ValidRequest, model: ServedModel) -> None:
    """Refuse the grammar of a custom tool that cannot be held, each by its own field."""
    for held in input_grammars(tools).values():
        written = tool_format(request, model)
        if written is None or not model.supports("grammar"):
            continue  # refused before, by `prepare.check`
        try:
            content = written.input_content(held)
        except FormatError as error:
            raise _unheld(held, str(error)) from None
        try:
            grammar(content, model.info, param=held.param)
        except InvalidRequestError as error:
            error.code = INVALID_GRAMMAR
            raise


def _unheld(held: ToolGrammar, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{held.param}': {why}.", param=held.param, code=INVALID_GRAMMAR)


def _relaxed(tools: ToolUse, request: ValidRequest, model: ServedModel, *, every: bool = False) -> ToolUse:
    """The tools with any JSON object as the arguments of functions that are not `strict`.

    Args:
        tools: the tools.
        request: the request.
        model: model that the request names.
        every: whether all of these functions are relaxed, not only those whose schemas cannot be enforced.
    """
    written = tool_format(request, model)
    if written is None or not model.supports("grammar"):
        return tools
    found = []
    for tool in tools.callable:
        function = tool["function"]
        free = not function.get("strict") and function["name"] not in tools.custom and function.get("parameters")
        if free and (every or not _is_enforceable(written, function["parameters"], model)):
            found.append({**tool, "function": {**function, "parameters": _ANY_OBJECT}})
        else:
            found.append(tool)
    return msgspec.structs.replace(tools, callable=found)


def _is_enforceable(written: ToolFormat, schema: Any, model: ServedModel) -> bool:
    try:
        grammar(written.arguments(schema, strict=False), model.info, param=_TOOLS)
    except InvalidRequestError:
        return False
    return True


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
        if structured is not None or _is_held(tools):
            calls = written.constraint(
                tools.callable,
                # Where the text must match something as well, it is that or calls, no mixture.
                at_least_one=tools.required or structured is not None,
                name=tools.name,
                # A call ends gpt-oss's turn.
                parallel=request.parallel_tool_calls and not model.formats.harmony,
                grammars=input_grammars(tools),
            )
        if tools.required:
            structured = None
    if structured is not None and model.formats.harmony and request.chat:
        structured = Requested(final(structured.format), structured.param)
    if calls is None:
        return structured
    if structured is None:
        return Requested(calls, _TOOLS)
    array = either(structured.format, calls) if not has_structural_tags(model.info) else None
    return Requested(array or {"type": "or", "elements": [structured.format, calls]}, structured.param)
