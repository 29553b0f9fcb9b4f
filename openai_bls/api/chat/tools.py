"""Messages as chat templates take them, and their images."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.api.chat import custom_tools, messages
from openai_bls.api.common.large_bodies import check_values
from openai_bls.api.common.lenient_json import lenient_value
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.media import ImageSource

# JSON text inside of the body, whose values are not counted with those of the body.
_MAX_ARGUMENT_VALUES = 64 * 1024
# Characters of all such texts of a request: what they become takes up to twenty times their memory.
_MAX_ARGUMENT_CHARACTERS = 4 << 20
# Far within what encoders and templates can do by recursion.
_MAX_ARGUMENT_DEPTH = 128


def _content(
    content: messages.Content | messages.MediaContent | None, param: str, images: list[ImageSource]
) -> str | list[dict[str, Any]]:
    """A message's content for chat templates: a string, or parts if it has images, which are added to `images`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not any(isinstance(part, messages.ImagePart) for part in content):
        return "\n".join(_text(part) for part in content)
    parts: list[dict[str, Any]] = []
    for at, part in enumerate(content):
        if isinstance(part, messages.ImagePart):
            images.append(_image(part.image_url, f"{param}[{at}].image_url"))
            parts.append({"type": "image"})
        else:
            parts.append({"type": "text", "text": _text(part)})
    return parts


def _text(part: messages.TextPart | messages.RefusalPart | messages.ImagePart) -> str:
    if isinstance(part, messages.RefusalPart):
        return part.refusal
    assert isinstance(part, messages.TextPart)
    return part.text


def _image(image: messages.ImageUrl, param: str) -> ImageSource:
    if (image.url is None) == (image.file_id is None):
        raise InvalidRequestError(f"'{param}' must have 'url' or 'file_id', one of them.", param=param)
    return ImageSource(image.url or "", param, image.detail or "auto", image.file_id or "")


class ArgumentRoom:
    """Room for the arguments of all calls in a request."""

    def __init__(self) -> None:
        self._left = _MAX_ARGUMENT_CHARACTERS

    def take(self, text: str) -> bool:
        """Take the room of a text; False if there is not enough left."""
        self._left -= len(text)
        return self._left >= 0


def template_message(
    message: messages.Message, index: int, images: list[ImageSource], room: ArgumentRoom
) -> dict[str, Any]:
    """Message number `index` for chat templates: content a string or parts, tool arguments an object or text.

    An assistant's message may say nothing: the server's own answers sometimes do.

    Args:
        message: the message.
        index: number of the message in the conversation.
        images: images of the messages before it, to which its own are added.
        room: room for the arguments of its calls.

    Raises:
        InvalidRequestError: it has something that is not supported.
    """
    role = message.__struct_config__.tag
    result: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if isinstance(message, messages.ToolMessage) and message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if isinstance(message, messages.AssistantMessage):
        for name in ("function_call", "audio"):
            if getattr(message, name) is not None:
                raise InvalidRequestError(
                    f"'{name}' of an assistant message is not supported: use 'tool_calls' and text.",
                    param=f"messages[{index}].{name}",
                )
        thoughts = message.reasoning_content or message.reasoning
        if thoughts:
            result["reasoning_content"] = thoughts
        if message.tool_calls:
            result["tool_calls"] = [_tool_call(call, room) for call in message.tool_calls]
    content = _content(message.content, f"messages[{index}].content", images)
    if not content and isinstance(message, messages.AssistantMessage):
        content = message.refusal or ""
    result["content"] = content
    if message.name is not None:
        result["name"] = message.name
    return result


def _tool_call(call: messages.ToolCall | messages.CustomToolCall, room: ArgumentRoom) -> dict[str, Any]:
    if isinstance(call, messages.CustomToolCall):
        return _function_call(call.id, call.custom.name, {custom_tools.INPUT: call.custom.input})
    return _function_call(call.id, call.function.name, template_arguments(call.function.arguments, room))


def _function_call(call_id: str | None, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call_id is not None:
        result["id"] = call_id
    return result


def template_arguments(text: str, room: ArgumentRoom) -> dict[str, Any] | str:
    """The arguments of a call as chat templates take them: the object that they are, else the text as it is.

    OpenAI takes any text, and a model may have written any: what is no object, is cut, has more values or levels than
    are decoded, or an integer of more than 64 bits, which preprocessing cannot be told, stays text, as does what there
    is no room for.
    """
    if not text.strip():
        return {}
    if not room.take(text):
        return text
    try:
        if len(text) > _MAX_ARGUMENT_VALUES:
            check_values(text.encode(errors="replace"), _MAX_ARGUMENT_VALUES)
        arguments = lenient_value(text)
        if not isinstance(arguments, dict) or _deeper(arguments, _MAX_ARGUMENT_DEPTH):
            return text
        msgspec.msgpack.encode(arguments)
    except (ValueError, OverflowError, RecursionError, InvalidRequestError):
        return text
    return arguments


def _deeper(value: Any, levels: int) -> bool:
    """True if arrays and objects are nested more than `levels` deep."""
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not layer:
            return False
    return True
