"""Edits of `context_management`: what each clears of a request's own messages.

The rules are those of Anthropic's context editing. Nothing is kept from one request to the next: the client sends the
whole conversation each time, and the same rules clear the same blocks of it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from openai_bls.api.common.faults import converted
from openai_bls.api.messages.context_schema import (
    ClearThinking,
    ClearToolUses,
    ContextManagement,
    Edit,
    InputTokens,
    ThinkingTurns,
    ToolUses,
)
from openai_bls.api.messages.errors import fault_at, refused
from openai_bls.api.messages.schema import Message
from openai_bls.core.request import ValidRequest

Block = dict[str, Any]

CLEARED = "[cleared to save context]"
"""Content of a tool result that has been cleared."""
_THOUGHTS = ("thinking", "redacted_thinking")
_EDITS: dict[str, type[Edit]] = {
    "clear_thinking_20251015": ClearThinking,
    "clear_tool_uses_20250919": ClearToolUses,
}


class Cleared(NamedTuple):
    """Messages after an edit."""

    messages: list[Message]
    number: int
    """Turns or tool uses that the edit cleared; with 0 the messages are as they were."""


class Edited(NamedTuple):
    """A request whose conversation has been edited."""

    valid: ValidRequest
    applied: list[dict[str, Any]]
    """`applied_edits` of the answer."""
    original_tokens: int | None
    """Tokens of the prompt before the edits; None if they were not counted, since nothing was cleared."""


def parsed_edits(management: ContextManagement | None) -> list[Edit]:
    """The edits of a request.

    Raises:
        InvalidRequestError: one is unknown, malformed or given twice.
    """
    edits: list[Edit] = []
    for at, value in enumerate((management and management.edits) or ()):
        where = f"context_management.edits.{at}"
        kind = value.get("type")
        known = _EDITS.get(kind) if isinstance(kind, str) else None
        if known is None:
            advice = "; compact with /v1/responses/compact, or ask for a summary" if "compact" in str(kind) else ""
            why = f"{str(kind)[:100]!r} is not supported: there are {' and '.join(map(repr, _EDITS))}{advice}"
            raise refused(f"{where}.type", "Field required" if kind is None else why)
        edit: Edit = converted(value, known, fault_at(where))
        if type(edit) in map(type, edits):
            raise refused(where, "this strategy is given twice")
        edits.append(edit)
    return edits


async def edited(
    edits: list[Edit],
    messages: list[Message],
    valid: ValidRequest,
    clear: Callable[[Edit, list[Message]], Awaitable[Cleared]],
    convert: Callable[[list[Message]], Awaitable[ValidRequest]],
    count: Callable[[ValidRequest], Awaitable[int]],
) -> Edited:
    """The request after its edits. Prompts are tokenized only where an edit has something to clear.

    Args:
        edits: edits of the request.
        messages: messages of the request.
        valid: chat completion that these have become.
        clear: gives the messages after an edit; see `clear`.
        convert: makes the chat completion of other messages.
        count: counts the tokens of a prompt.

    Raises:
        ApiError: a prompt could not be tokenized.
    """
    applied: list[dict[str, Any]] = []
    original = tokens = None
    for edit in edits:
        cleared = await clear(edit, messages)
        if not cleared.number:
            continue
        if tokens is None:
            original = tokens = await count(valid)
        if isinstance(edit, ClearToolUses) and isinstance(edit.trigger, InputTokens) and tokens <= edit.trigger.value:
            continue
        changed = await convert(cleared.messages)
        left = await count(changed)
        if isinstance(edit, ClearToolUses) and edit.clear_at_least and tokens - left < edit.clear_at_least.value:
            continue
        applied.append(_told(edit, cleared.number, max(0, tokens - left)))
        messages, valid, tokens = cleared.messages, changed, left
    return Edited(valid, applied, original)


def _told(edit: Edit, count: int, tokens: int) -> dict[str, Any]:
    what = "cleared_thinking_turns" if isinstance(edit, ClearThinking) else "cleared_tool_uses"
    return {"type": edit.__struct_config__.tag, what: count, "cleared_input_tokens": tokens}


def clear(edit: Edit, messages: list[Message]) -> Cleared:
    """Messages after an edit, as far as the messages decide: the numbers of tokens do not count."""
    if isinstance(edit, ClearThinking):
        return _thinking_cleared(edit, messages)
    return _tool_uses_cleared(edit, messages)


def _thinking_cleared(edit: ClearThinking, messages: list[Message]) -> Cleared:
    if not isinstance(edit.keep, ThinkingTurns):
        return Cleared(messages, 0)
    turns = [turn for turn in _assistant_turns(messages) if any(_has_thoughts(messages[at]) for at in turn)]
    old = turns[: -edit.keep.value]
    places = {at for turn in old for at in turn}
    return Cleared([_without_thoughts(m) if at in places else m for at, m in enumerate(messages)], len(old))


def _tool_uses_cleared(edit: ClearToolUses, messages: list[Message]) -> Cleared:
    uses = [block for message in messages if message.role == "assistant" for block in _of(message, "tool_use")]
    if isinstance(edit.trigger, ToolUses) and len(uses) <= edit.trigger.value:
        return Cleared(messages, 0)
    excluded = set(edit.exclude_tools or ())
    answered = {block.get("tool_use_id") for message in messages for block in _of(message, "tool_result")}
    old = {
        use["id"]: use["name"]
        for use in uses[: max(0, len(uses) - edit.keep.value)]
        if use["name"] not in excluded and use["id"] in answered
    }
    inputs = edit.clear_tool_inputs
    named = frozenset(inputs) if isinstance(inputs, list) else frozenset[str]()
    forgotten = {use for use, name in old.items() if inputs is True or name in named}

    def changed(block: Block) -> Block:
        if block["type"] == "tool_result" and block["tool_use_id"] in old:
            return {**block, "content": CLEARED}
        if block["type"] == "tool_use" and block["id"] in forgotten:
            return {**block, "input": {}}
        return block

    return Cleared([_changed(message, changed) for message in messages] if old else messages, len(old))


def _assistant_turns(messages: list[Message]) -> Iterator[list[int]]:
    """Places of the assistant's messages, turn by turn: a turn goes on over the results of its tool calls."""
    turn: list[int] = []
    for at, message in enumerate(messages):
        if message.role == "assistant":
            turn.append(at)
        elif message.role == "user" and turn and not any(_of(message, "tool_result")):
            yield turn
            turn = []
    if turn:
        yield turn


def _of(message: Message, *kinds: str) -> Iterator[Block]:
    """Blocks of these types."""
    if isinstance(message.content, list):
        yield from (block for block in message.content if block["type"] in kinds)


def _has_thoughts(message: Message) -> bool:
    return any(_of(message, *_THOUGHTS))


def _without_thoughts(message: Message) -> Message:
    if isinstance(message.content, str):
        return message
    content = [block for block in message.content if block["type"] not in _THOUGHTS]
    # A message needs content.
    return msgspec.structs.replace(message, content=content or [{"type": "text", "text": ""}])


def _changed(message: Message, changed: Callable[[Block], Block]) -> Message:
    if isinstance(message.content, str):
        return message
    return msgspec.structs.replace(message, content=[changed(block) for block in message.content])
