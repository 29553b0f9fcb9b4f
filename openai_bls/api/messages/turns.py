"""Conversation of a Messages request: turns of content blocks as chat messages.

Turns of the same role that follow each other are one turn. Of a user's turn each tool result becomes a message of its
own, in the order of the blocks; of an assistant's the text is joined as it was written. If the last turn is the
assistant's, the answer goes on from its text (prefill); without text, or with calls, the answer is a separate turn.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.messages.blocks import BlockReader, parts
from openai_bls.api.messages.errors import refused
from openai_bls.api.messages.schema import Block, Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

ChatMessage = dict[str, Any]

_ID_PREFIX = "toolu_"
# The one member of an input that is no JSON object; Anthropic's word.
_INVALID = "INVALID_JSON"


class Turns(NamedTuple):
    """A conversation as chat completions have it."""

    messages: list[ChatMessage]
    prefilled: bool
    """The last message is the beginning of the answer."""
    images: list[str]
    """Path of each image in the body."""


def tool_use_id(call_id: str) -> str:
    """The id of a tool call as this API has it; `call_id_of` gives the model's own form of it back."""
    return _ID_PREFIX + call_id.removeprefix("call_")


def call_id_of(tool_use_id: str) -> str:
    """The id as chat templates are shown it: some take only ids of the model's own form."""
    return tool_use_id.removeprefix(_ID_PREFIX)


def chat_messages(system: str | list[dict[str, Any]] | None, messages: list[Message], ignored: IgnoredFields) -> Turns:
    """The conversation.

    Raises:
        InvalidRequestError: a block is malformed, or not supported where it stands.
    """
    result: list[ChatMessage] = []
    images: list[str] = []
    reader = BlockReader(images, ignored)
    if system and (instructions := reader.blocks(system, "system", "system")):
        result.append({"role": "system", "content": parts(instructions)})
    last_user = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    shown = [(at, one) for at, one in enumerate(messages) if not _is_over(one, at, last_user)]
    role = ""
    for role, turn in groupby(shown, lambda numbered: numbered[1].role):
        blocks = [block for at, message in turn for block in reader.message(message, at)]
        if role == "user":
            result += _user(blocks)
        elif role == "system":
            if blocks:
                result.append({"role": "system", "content": parts(blocks)})
        else:
            result.append(_assistant(blocks))
    return Turns(result, role == "assistant" and _prefill(result), images)


def _is_over(message: Message, at: int, last_user: int) -> bool:
    """True for a system message that was for an earlier turn of the user only.

    Raises:
        InvalidRequestError: the message has another role, and says such a thing.
    """
    if message.clear_at is None:
        return False
    if message.role != "system":
        raise refused(f"messages.{at}.clear_at", "only messages of the role 'system' may have it")
    return message.clear_at == "next_user_message" and at < last_user


def _prefill(messages: list[ChatMessage]) -> bool:
    """True if the last message, the assistant's, is a prefill; an empty one is removed."""
    last = messages[-1]
    if "tool_calls" in last:
        return False
    text: str = last["content"]
    if not text.strip() and "reasoning_content" not in last:
        messages.pop()
    return bool(text.strip())


def _user(blocks: list[Block]) -> list[ChatMessage]:
    result: list[ChatMessage] = []
    for is_result, run in groupby(blocks, lambda block: isinstance(block, ToolResultBlock)):
        if is_result:
            result += [_tool_result(block) for block in run if isinstance(block, ToolResultBlock)]
        else:
            result.append({"role": "user", "content": parts(list(run))})
    return result


def _tool_result(block: ToolResultBlock) -> ChatMessage:
    content = block.content or []
    found = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if block.is_error:
        # Chat templates know results only as text.
        found = [{"type": "text", "text": "Error:"}, *found]
    return {"role": "tool", "tool_call_id": call_id_of(block.tool_use_id), "content": found}


def _assistant(blocks: list[Block]) -> ChatMessage:
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    message: ChatMessage = {"role": "assistant", "content": text}
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock) and block.thinking]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    calls = [_tool_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": _arguments(block.input)}
    return {"id": call_id_of(block.id), "type": "function", "function": function}


def tool_input(text: str) -> dict[str, Any] | msgspec.Raw:
    """A tool call's input: the model's own text if that is a JSON object.

    Any other text, such as one cut off at max_tokens, becomes a string in an object: nothing is repaired, and no tool
    is called with incomplete arguments.
    """
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {_INVALID: text}
    return msgspec.Raw(text.encode())


def _arguments(given: dict[str, Any]) -> str:
    """The arguments that `tool_input` has made an input of."""
    text = given.get(_INVALID)
    return text if isinstance(text, str) and len(given) == 1 else msgspec.json.encode(given).decode()
