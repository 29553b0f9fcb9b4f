from __future__ import annotations

import pytest

from openai_bls.api.messages.errors import error_body
from openai_bls.core.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("temperature", "temperature"),
        ("stop", "stop_sequences"),
        ("stopper", "stopper"),
        ("response_format", "output_config.format"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("tools[2].function.name", "tools.2.name"),
        ("tools[0].function.parameters", "tools.0.input_schema"),
        ("tools[0].function.parameters.type", "tools.0.input_schema.type"),
        ("tools[0].function", "tools.0"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("messages", "messages"),
        ("messages[3].content[0]", "messages.3.content.0"),
    ],
)
def test_fields_have_their_own_names(param: str, name: str) -> None:
    message = error_body(InvalidRequestError(f"'{param}' is bad: 'this' is not.", param=param))["error"]["message"]
    assert message == f"'{name}' is bad: 'this' is not."
