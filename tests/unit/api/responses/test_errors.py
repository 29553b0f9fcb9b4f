"""Errors of the chat completion behind a response, in the names of the response's own fields."""

from __future__ import annotations

import pytest

from openai_bls.api.responses.errors import Origin, translate
from openai_bls.core.errors import InvalidRequestError

ORIGINS = [Origin("instructions"), Origin("input[1]", ["input[1]", "input[2]"]), Origin("previous_response_id", ["x"])]
TOOLS = ["tools[0]", "tools[2].tools[1]", "input[0].tools[3]", "previous_response_id"]


@pytest.mark.parametrize(
    ("param", "own"),
    [
        ("messages[0].content", "instructions"),
        ("messages[1].tool_calls[1].function.arguments", "input[2].arguments"),
        ("messages[1].tool_calls[0].custom.input", "input[1].input"),
        ("messages[2].tool_calls[0].function.arguments", "x"),
        ("tools[0].function.parameters", "tools[0].parameters"),
        ("tools[1].function.name", "tools[2].tools[1].name"),
        ("tools[1].custom.format.grammar.definition", "tools[2].tools[1].format.definition"),
        ("tools[2].custom.format.grammar.syntax", "input[0].tools[3].format.syntax"),
        ("tools[2].name", "tools[2].name"),
        # What has been stored is not in the body.
        ("tools[3].function.parameters", "previous_response_id"),
        ("tools[9].function.name", "tools[9].function.name"),
        ("tools", "tools"),
        ("tool_choice.custom.name", "tool_choice.name"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("max_tokens", "max_output_tokens"),
        ("temperature", "temperature"),
    ],
)
def test_translate(param: str, own: str) -> None:
    error = InvalidRequestError(f"'{param}' is wrong.", param=param)
    for _ in range(2):
        translate(error, ORIGINS, TOOLS)
        assert (error.param, error.message) == (own, f"'{own}' is wrong.")
