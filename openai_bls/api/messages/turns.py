"""Conversation of a Messages request: turns of content blocks as chat messages.

Turns of the same role that follow each other are one turn. Of a user's turn each tool result becomes a message of its
own, in the order of the blocks; of an assistant's the text is joined as it was written. If the last turn is the
assistant's, the answer goes on from its text (prefill).
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from openai_bls.api.common.fields import IgnoredFields, converted_fields
from openai_bls.api.messages.errors import fault_at, refused
from openai_bls.api.messages.schema import (
    REFUSED_BLOCKS,
    SERVER_BLOCKS,
    Base64Source,
    Block,
    FileSource,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)

ChatMessage = dict[str, Any]

_ID_PREFIX = "toolu_"
_BILLING = "x-anthropic-billing-header:"
"""Beginning of a system block of Claude Code's for Anthropic's servers. It is new with each request: a prefix cache
would find nothing behind it."""
_BLOCKS: dict[str, dict[str, type[Block]]] = {
    "system": {"text": TextBlock},
    "user": {"text": TextBlock, "image": ImageBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "tool_use": ToolUseBlock, "thinking": ThinkingBlock},
    "tool_result": {"text": TextBlock, "image": ImageBlock},
}
"""Position of a block → types allowed there."""
_KNOWN = {name for types in _BLOCKS.values() for name in types}


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
    reader = _Reader(images, ignored)
    if system and (instructions := reader.blocks(system, "system", "system")):
        result.append({"role": "system", "content": _parts(instructions)})
    turns = groupby(enumerate(messages), lambda numbered: numbered[1].role)
    role = ""
    for role, turn in turns:
        last = len(messages) - 1
        blocks = [block for at, message in turn for block in reader.content(message, at, last=at == last)]
        if role == "user":
            result += _user(blocks)
        elif role == "system":
            if blocks:
                result.append({"role": "system", "content": _parts(blocks)})
        else:
            result.append(_assistant(blocks))
    return Turns(result, role == "assistant" and _prefill(result), images)


def _prefill(messages: list[ChatMessage]) -> bool:
    """True if the last message, the assistant's, is a prefill; an empty one is removed."""
    last = messages[-1]
    text: str = last["content"]
    if "tool_calls" in last:
        raise refused("messages", "the last turn ends with 'tool_use' blocks; their 'tool_result' blocks are missing")
    if not text and "reasoning_content" in last:
        raise refused("messages", "an assistant's last turn must end with text, not with a 'thinking' block")
    if not text:
        messages.pop()
        return False
    if text != text.rstrip():
        raise refused("messages", "final assistant content cannot end with trailing whitespace")
    return True


class _Reader:
    """Reader of content blocks.

    Args:
        images: receiver of the paths of images.
        ignored: receiver of the fields without effect.
    """

    def __init__(self, images: list[str], ignored: IgnoredFields) -> None:
        self._images = images
        self._ignored = ignored

    def content(self, message: Message, at: int, *, last: bool) -> list[Block]:
        """The blocks of message number `at`."""
        where = f"messages.{at}.content"
        if not message.content and not (last and message.role == "assistant"):
            raise refused(where, "every message but an assistant's last one needs content")
        return self.blocks(message.content, where, message.role)

    def blocks(self, content: str | list[dict[str, Any]], where: str, place: str) -> list[Block]:
        """The blocks of a content."""
        if isinstance(content, str):
            return [TextBlock(text=content)] if content else []
        blocks = [self._block(value, f"{where}.{at}", place) for at, value in enumerate(content)]
        if place == "system":
            return [block for block in blocks if not (isinstance(block, TextBlock) and block.text.startswith(_BILLING))]
        return blocks

    def _block(self, value: dict[str, Any], where: str, place: str) -> Block:
        kind = value.get("type")
        if not isinstance(kind, str):
            raise refused(f"{where}.type", "Field required" if kind is None else "Expected `str`")
        known = _BLOCKS[place].get(kind)
        if known is None:
            article = "a tool's result" if place == "tool_result" else f"content of the role '{place}'"
            why = f"it cannot stand in {article}" if kind in _KNOWN else REFUSED_BLOCKS.get(kind, SERVER_BLOCKS)
            raise refused(where, f"a block of type {kind[:100]!r} is not supported: {why}")
        path = "system[]" if place == "system" else "messages[].content[]"
        block = converted_fields(value, known, fault_at(where), self._ignored, path)
        if block.cache_control is not None:
            self._ignored.add(f"{path}.cache_control")
        if isinstance(block, TextBlock) and block.citations:
            raise refused(f"{where}.citations", "citations are not supported; leave them out")
        if isinstance(block, ToolUseBlock) and block.caller not in (None, {"type": "direct"}):
            raise refused(
                f"{where}.caller", "tools are called by the model itself; nothing but direct calls is supported"
            )
        if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
            block.content = _parts(self.blocks(block.content, f"{where}.content", "tool_result"))
        if isinstance(block, ImageBlock):
            self._images.append(where)
        return block


def _parts(blocks: list[Block]) -> list[dict[str, Any]]:
    """Parts of a chat message."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, ImageBlock):
            parts.append({"type": "image_url", "image_url": _image(block.source)})
    return parts


def _image(source: Base64Source | UrlSource | FileSource) -> dict[str, str]:
    if isinstance(source, FileSource):
        return {"file_id": source.file_id}
    if isinstance(source, UrlSource):
        return {"url": source.url}
    return {"url": f"data:{source.media_type};base64,{source.data}"}


def _user(blocks: list[Block]) -> list[ChatMessage]:
    result: list[ChatMessage] = []
    for is_result, run in groupby(blocks, lambda block: isinstance(block, ToolResultBlock)):
        if is_result:
            result += [_tool_result(block) for block in run if isinstance(block, ToolResultBlock)]
        else:
            result.append({"role": "user", "content": _parts(list(run))})
    return result


def _tool_result(block: ToolResultBlock) -> ChatMessage:
    content = block.content or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if block.is_error:
        # Chat templates know results only as text.
        parts = [{"type": "text", "text": "Error:"}, *parts]
    return {"role": "tool", "tool_call_id": call_id_of(block.tool_use_id), "content": parts}


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
    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
    return {"id": call_id_of(block.id), "type": "function", "function": function}
