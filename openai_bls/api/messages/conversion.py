"""Conversion of a Messages body to the `ValidRequest` of the equivalent chat completion."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from openai_bls.api.chat.thinking import switched
from openai_bls.api.chat.validation import parse_object, with_image_params
from openai_bls.api.common.fields import IgnoredFields, decoded_body
from openai_bls.api.common.large_bodies import check_count
from openai_bls.api.common.unsupported import first_unsupported
from openai_bls.api.messages.context_edits import clear, parsed_edits
from openai_bls.api.messages.context_schema import Edit
from openai_bls.api.messages.errors import fault, refused
from openai_bls.api.messages.schema import (
    UNSUPPORTED,
    JsonFormat,
    MessagesRequest,
    PromptRequest,
    ThinkingDisabled,
    ThinkingEnabled,
)
from openai_bls.api.messages.tools import read_tool_choice, read_tools, tools_placed
from openai_bls.api.messages.turns import chat_messages
from openai_bls.core.request import ValidRequest

RequestT = TypeVar("RequestT", bound=PromptRequest)

_DECODERS: dict[type[PromptRequest], Any] = {cls: msgspec.json.Decoder(cls) for cls in (PromptRequest, MessagesRequest)}
_SAME_NAMES = ("temperature", "top_p", "top_k", "timeout")


class Converted(NamedTuple):
    """A request, ready for the service."""

    valid: ValidRequest
    omit_thinking: bool
    """Leave the text of thinking blocks empty."""
    edits: list[Edit]
    """Edits of the conversation that are still to be applied."""
    tools: list[int]
    """Places of the tools in the body."""


def decode(body: bytes, kind: type[RequestT], ignored: IgnoredFields) -> RequestT:
    """A request body, of which the fields without effect are noted.

    Raises:
        InvalidRequestError: it is not JSON, or a field is unknown, missing, of the wrong type or not honoured.
    """
    request: RequestT = decoded_body(_DECODERS[kind], body, fault, ignored)
    name = first_unsupported({name: getattr(request, name, UNSET) for name in UNSUPPORTED}, UNSUPPORTED)
    if name is not None:
        raise refused(name, f"this is not supported: {UNSUPPORTED[name].advice}")
    return request


def convert(request: PromptRequest, ignored: IgnoredFields, *, thinks: bool, max_items: int | None = None) -> Converted:
    """The chat completion that asks for the same.

    Args:
        request: the body.
        ignored: receiver of the fields without effect.
        thinks: the model's reasoning can be parsed out of its answer.
        max_items: see `check_count`.

    Raises:
        InvalidRequestError: a field is out of range or not supported as it stands.
    """
    check_count(_blocks(request.system), "system", max_items)
    check_count(sum(_blocks(message.content) for message in request.messages), "messages", max_items)
    check_count(len(request.tools or ()), "tools", max_items)
    edits = parsed_edits(request.context_management)
    turns = chat_messages(request.system, request.messages, ignored)
    body: dict[str, Any] = {"model": request.model, "messages": turns.messages}
    structured = _format(request)
    if turns.prefilled:
        thought = "reasoning_content" in turns.messages[-1]
        _check_prefill(request, structured, could_think=thinks and not thought)
        body["continue_final_message"] = True
    if structured is not None:
        json_schema = {"name": "answer", "schema": structured.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    tools = read_tools(request.tools or [], ignored)
    if request.tools is not None and (tools.offered or not tools.left_out):
        body["tools"] = tools.offered
    if request.tool_choice is not None:
        body |= read_tool_choice(request.tool_choice, tools)
    effort = request.output_config.effort if request.output_config is not None else None
    if effort is not None:
        body["reasoning_effort"] = effort
    body |= _thinking(request, thinks)
    max_tokens = None
    if isinstance(request, MessagesRequest):
        max_tokens = request.max_tokens
        body |= _generation(request)
    with tools_placed(tools.places):
        valid = with_image_params(parse_object("chat.completions", body), turns.images)
    valid = msgspec.structs.replace(valid, ignored=ignored.names, thinking_params=_thinking_params(request))
    if max_tokens == 0:
        # Chat completions do not have it, the engines do.
        valid = msgspec.structs.replace(valid, max_tokens=0)
    thinking = request.thinking
    shown = thinking is None or isinstance(thinking, ThinkingDisabled) or thinking.display != "omitted"
    # What has nothing to clear is done with.
    edits = edits if any(clear(edit, request.messages).number for edit in edits) else []
    return Converted(valid, omit_thinking=not shown, edits=edits, tools=tools.places)


def _thinking_params(request: PromptRequest) -> tuple[str, ...]:
    """Fields that are hints about the reasoning, and without effect for a model that takes none."""
    effort = request.output_config is not None and request.output_config.effort is not None
    found = ["output_config.effort"] if effort else []
    return (*found, "thinking") if isinstance(request.thinking, ThinkingEnabled) else (*found,)


def _blocks(content: str | list[dict[str, Any]] | None) -> int:
    """Blocks of a content, those inside of tools' results included."""
    if not isinstance(content, list):
        return 1
    inner = (found for block in content for found in (block.get("content"), _source_content(block)))
    return max(1, len(content) + sum(len(found) for found in inner if isinstance(found, list)))


def _source_content(block: dict[str, Any]) -> Any:
    """Blocks of a document."""
    source = block.get("source")
    return source.get("content") if isinstance(source, dict) else None


def _generation(request: MessagesRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"stream": bool(request.stream)}
    if request.max_tokens:
        body["max_tokens"] = request.max_tokens
    if request.stop_sequences is not None:
        body["stop"] = request.stop_sequences
    return body | {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}


def _format(request: PromptRequest) -> JsonFormat | None:
    newer = request.output_config.format if request.output_config is not None else None
    if newer is not None and request.output_format is not None:
        raise refused("output_format", "it says the same as output_config.format; give one of them")
    return newer or request.output_format


def _check_prefill(request: PromptRequest, structured: JsonFormat | None, *, could_think: bool) -> None:
    """Refuse a prefill together with what needs the beginning of the answer.

    Args:
        request: the request.
        structured: format of the answer.
        could_think: the model thinks, and the prefill has no thoughts yet.

    Raises:
        InvalidRequestError: the request asks for it.
    """
    if structured is not None:
        raise refused(
            "output_config.format", "the last message is the assistant's; the whole answer must fit the schema"
        )
    if isinstance(request.thinking, ThinkingEnabled) and could_think:
        raise refused("thinking", "the last message is the assistant's; the model cannot think before it any more")


def _thinking(request: PromptRequest, thinks: bool) -> dict[str, Any]:
    thinking = request.thinking
    if isinstance(thinking, ThinkingDisabled):
        # Models that always think have no such variable; their reasoning is left out of the answer.
        return {"chat_template_kwargs": switched(False), "include_reasoning": False}
    budget = None
    if isinstance(thinking, ThinkingEnabled):
        budget = thinking.budget_tokens
        if isinstance(request, MessagesRequest) and budget >= request.max_tokens:
            raise refused("thinking.budget_tokens", f"it must be less than max_tokens ({request.max_tokens})")
    if thinking is None or not thinks:
        return {}
    return {"chat_template_kwargs": switched(True, budget)}
