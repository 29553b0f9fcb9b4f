"""Errors of the Responses API: its field names in the errors of the chat completion behind a response."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from openai_bls.api.responses.tools.toolbox import below
from openai_bls.core.errors import ApiError


class Origin(msgspec.Struct):
    """Origin of a chat message in the request body."""

    param: str
    """A path in the body: `instructions`, `input`, `input[2]`, `previous_response_id`."""
    calls: list[str] = []
    """Paths of its tool calls."""


_FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
_PLACES = (
    (re.compile(r"^response_format\.(?:json_schema\.)?"), "text.format."),
    (re.compile(r"^tool_choice\.(?:function|custom|allowed_tools)\b"), "tool_choice"),
)
# A path of this API has neither word in this place, so that it stays as it is.
_TOOL = re.compile(r"^tools\[(?P<at>\d+)\]\.(?:function|custom)\b(?:\.format\.grammar\b)?(?P<rest>.*)", re.DOTALL)
_MESSAGE = re.compile(r"^messages\[(?P<at>\d+)\](?:\.tool_calls\[(?P<call>\d+)\]\.(?:function|custom)(?P<rest>\..*))?")


def translate(error: ApiError, origins: list[Origin], tools: Sequence[str] = ()) -> None:
    """Put an error of a chat completion in the field names of the response that it was made for.

    Alters it in place, since `metrics` knows it by identity; idempotent.

    Args:
        error: error whose `param` names a field of chat completions.
        origins: origins of the chat's messages, in order.
        tools: places in the body of the chat's tools, in order.
    """
    param = error.param
    if param is None:
        return
    own = _own_name(param, origins, tools)
    if own == param:
        return
    for name in (param, re.split(r"[.\[]", param)[0]):
        error.message = error.message.replace(f"'{name}'", f"'{_own_name(name, origins, tools)}'")
    error.param = own


def _own_name(param: str, origins: list[Origin], tools: Sequence[str]) -> str:
    if param in _FIELDS:
        return _FIELDS[param]
    match = _MESSAGE.match(param)
    if match is not None and int(match["at"]) < len(origins):
        origin = origins[int(match["at"])]
        if match["call"] is not None and int(match["call"]) < len(origin.calls):
            call = origin.calls[int(match["call"])]
            # What has been stored is not in the body.
            return call + match["rest"] if call.startswith("input") else call
        return origin.param
    match = _TOOL.match(param)
    if match is not None and int(match["at"]) < len(tools):
        grammar = ".format" if ".format.grammar" in param else ""
        return below(tools[int(match["at"])], f"{grammar}{match['rest']}")
    for pattern, replacement in _PLACES:
        if pattern.match(param):
            return pattern.sub(replacement, param)
    return param
