"""Custom tools: to the model functions with one parameter, the input."""

from __future__ import annotations

from typing import Any

from openai_bls.api.chat import messages
from openai_bls.core.request import ToolGrammar
from openai_bls.output.tool_parsers.custom_input import INPUT

# Characters of a grammar that the prompt shows.
_MAX_SHOWN = 8 * 1024
_SYNTAXES = {"lark": "Lark grammar", "regex": "regular expression"}

__all__ = ["INPUT", "as_function", "grammar"]


def as_function(tool: messages.Custom) -> dict[str, Any]:
    """A custom tool as chat templates see it: a function whose one parameter is the input."""
    about = "The input of the tool: text"
    if isinstance(tool.format, messages.GrammarInput):
        definition = tool.format.grammar.definition
        shown = definition if len(definition) <= _MAX_SHOWN else definition[:_MAX_SHOWN] + "…"
        about += f" that matches this {_SYNTAXES[tool.format.grammar.syntax]}:\n{shown}"
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": about}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": parameters}}


def grammar(tool: messages.Custom, param: str) -> ToolGrammar | None:
    """The grammar of a tool's input; None if it is free text.

    Args:
        tool: the custom tool.
        param: field of the tool in the request.
    """
    if not isinstance(tool.format, messages.GrammarInput):
        return None
    given = tool.format.grammar
    return ToolGrammar(given.syntax, given.definition, f"{param}.format.grammar.definition")
