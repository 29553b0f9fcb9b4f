"""Conversion of a Messages body to the `ValidRequest` of the equivalent chat completion."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from openai_bls.api.chat.validation import parse_object, with_image_params
from openai_bls.api.common.fields import IgnoredFields, converted_fields, decoded_body
from openai_bls.api.common.large_bodies import check_count
from openai_bls.api.common.unsupported import first_unsupported
from openai_bls.api.messages.context_edits import clear, parsed_edits
from openai_bls.api.messages.context_schema import Edit
from openai_bls.api.messages.errors import fault, fault_at, refused
from openai_bls.api.messages.schema import (
    UNSUPPORTED,
    AnyToolChoice,
    AutoToolChoice,
    JsonFormat,
    MessagesRequest,
    NoToolChoice,
    PromptRequest,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
    Tool,
    ToolChoice,
)
from openai_bls.api.messages.turns import chat_messages
from openai_bls.core.request import ValidRequest

RequestT = TypeVar("RequestT", bound=PromptRequest)

_DECODERS: dict[type[PromptRequest], Any] = {cls: msgspec.json.Decoder(cls) for cls in (PromptRequest, MessagesRequest)}
_SAME_NAMES = ("temperature", "top_p", "top_k", "timeout")
# Their names for whether to think differ from template to template, and so does whether they do if nothing is said.
_THINK = {"enable_thinking": True, "thinking": True}
_DO_NOT_THINK = {"enable_thinking": False, "thinking": False, "thinking_budget": 0}


class Converted(NamedTuple):
    """A request, ready for the service."""

    valid: ValidRequest
    omit_thinking: bool
    """Leave the text of thinking blocks empty."""
    edits: list[Edit]
    """Edits of the conversation that are still to be applied."""


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
        _check_prefill(request, structured)
        body["continue_final_message"] = True
    if structured is not None:
        json_schema = {"name": "answer", "schema": structured.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    if request.tools is not None:
        body["tools"] = [_tool(value, f"tools.{at}", ignored) for at, value in enumerate(request.tools)]
    if request.tool_choice is not None:
        body |= _tool_choice(request.tool_choice)
    effort = request.output_config.effort if request.output_config is not None else None
    # "high" is the API's default: the same as leaving it out.
    if effort is not None and effort != "high":
        body["reasoning_effort"] = effort
    body |= _thinking(request, thinks)
    max_tokens = None
    if isinstance(request, MessagesRequest):
        max_tokens = request.max_tokens
        body |= _generation(request)
    valid = with_image_params(parse_object("chat.completions", body), turns.images)
    valid = msgspec.structs.replace(valid, ignored=ignored.names, thinking_params=_thinking_params(request))
    if max_tokens == 0:
        # Chat completions do not have it, the engines do.
        valid = msgspec.structs.replace(valid, max_tokens=0)
    thinking = request.thinking
    shown = not isinstance(thinking, (ThinkingEnabled, ThinkingAdaptive)) or thinking.display != "omitted"
    # What has nothing to clear is done with.
    edits = edits if any(clear(edit, request.messages).count for edit in edits) else []
    return Converted(valid, omit_thinking=not shown, edits=edits)


def _thinking_params(request: PromptRequest) -> tuple[str, ...]:
    effort = request.output_config is not None and request.output_config.effort is not None
    return ("output_config.effort",) if effort else ()


def _blocks(content: str | list[dict[str, Any]] | None) -> int:
    """Blocks of a content, those inside of tools' results included."""
    if not isinstance(content, list):
        return 1
    inner = (found for block in content if isinstance(found := block.get("content"), list))
    return max(1, len(content) + sum(map(len, inner)))


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


def _check_prefill(request: PromptRequest, structured: JsonFormat | None) -> None:
    """Refuse a prefill together with what needs the beginning of the answer.

    Raises:
        InvalidRequestError: the request asks for it.
    """
    if structured is not None:
        raise refused(
            "output_config.format", "the last message is the assistant's; the whole answer must fit the schema"
        )
    if isinstance(request.thinking, ThinkingEnabled):
        raise refused("thinking", "the last message is the assistant's; the model cannot think before it any more")


def _thinking(request: PromptRequest, thinks: bool) -> dict[str, Any]:
    thinking = request.thinking
    if isinstance(thinking, ThinkingDisabled):
        # Models that always think have no such variable; their reasoning is left out of the answer.
        return {"chat_template_kwargs": dict(_DO_NOT_THINK), "include_reasoning": False}
    if thinking is None or (isinstance(thinking, ThinkingAdaptive) and not thinks):
        return {}
    if isinstance(thinking, ThinkingAdaptive):
        return {"chat_template_kwargs": dict(_THINK)}
    if not thinks:
        raise refused("thinking", "this model does not think; leave it out, or use the type 'adaptive' or 'disabled'")
    if isinstance(request, MessagesRequest) and thinking.budget_tokens >= request.max_tokens:
        raise refused("thinking.budget_tokens", f"it must be less than max_tokens ({request.max_tokens})")
    return {"chat_template_kwargs": {**_THINK, "thinking_budget": thinking.budget_tokens}}


def _tool(value: dict[str, Any], where: str, ignored: IgnoredFields) -> dict[str, Any]:
    kind = value.get("type")
    if kind is not None and kind != "custom":
        raise refused(
            where,
            f"a tool of type {str(kind)[:100]!r} is not supported: only tools of type 'custom', which have an "
            "input_schema and are run by the client, are",
        )
    tool = converted_fields(value, Tool, fault_at(where), ignored, "tools[]")
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _tool_choice(choice: ToolChoice) -> dict[str, Any]:
    if isinstance(choice, NoToolChoice):
        return {"tool_choice": "none"}
    parallel = {"parallel_tool_calls": not choice.disable_parallel_tool_use}
    if isinstance(choice, AutoToolChoice):
        return {"tool_choice": "auto", **parallel}
    if isinstance(choice, AnyToolChoice):
        return {"tool_choice": "required", **parallel}
    return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **parallel}
