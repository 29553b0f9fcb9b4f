"""Input of a request for decisions as the messages of a chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from openai_bls.api.decisions import schema
from openai_bls.core.errors import InvalidRequestError

MAX_JSON_BYTES = 256 * 1024
MAX_JSON_VALUES = 10_000
MAX_JSON_LEVELS = 32


class Conversation:
    """Messages of a chat completion, which grow item by item."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origins: list[str] = []
        """Path in the body of each message."""
        self.images: list[str] = []
        """Path in the body of each image."""
        self._call_ids: set[str] = set()

    def extend(self, given: str | Sequence[schema.Item]) -> None:
        """Add the field `input`.

        Raises:
            InvalidRequestError: an item has a part that its role has not, or is the output of no earlier call.
        """
        if isinstance(given, str):
            self._add({"role": "user", "content": given}, "input")
            return
        for at, item in enumerate(given):
            self._extend(item, f"input[{at}]")

    def ask(self, instructions: schema.Instructions, below: str, at: str) -> None:
        """Add a question.

        Args:
            instructions: instructions of the question.
            below: text after them.
            at: path of the question.
        """
        given = [schema.InputText(instructions)] if isinstance(instructions, str) else instructions
        parts = self._parts([*given, schema.InputText(below)], f"{at}.instructions")
        self._add({"role": "user", "content": parts}, f"{at}.instructions")

    def _extend(self, item: schema.Item, at: str) -> None:
        if isinstance(item, schema.Message):
            self._say(item, at)
        elif isinstance(item, schema.FunctionCall):
            function = {"name": _flat(item), "arguments": item.arguments}
            self._call(item.call_id, {"type": "function", "function": function}, at)
        elif isinstance(item, schema.CustomToolCall):
            self._call(item.call_id, {"type": "custom", "custom": {"name": _flat(item), "input": item.input}}, at)
        elif item.call_id not in self._call_ids:
            raise InvalidRequestError(f"'{at}' is the output of no call before it.", param=f"{at}.call_id")
        else:
            content = item.output if isinstance(item.output, str) else self._parts(item.output, f"{at}.output")
            self._add({"role": "tool", "tool_call_id": item.call_id, "content": content}, at)

    def _add(self, message: dict[str, Any], at: str) -> None:
        self.messages.append(message)
        self.origins.append(at)

    def _say(self, message: schema.Message, at: str) -> None:
        content = message.content
        if not isinstance(content, str):
            for index, part in enumerate(content):
                _check_role(part, message.role, f"{at}.content[{index}].type")
            content = self._parts(content, f"{at}.content")  # type: ignore[assignment]
        self._add({"role": message.role, "content": content}, at)

    def _call(self, call_id: str, call: dict[str, Any], at: str) -> None:
        """Add a call to the assistant's message, of which there is one for a turn."""
        self._call_ids.add(call_id)
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": ""}, at)
        self.messages[-1].setdefault("tool_calls", []).append({"id": call_id, **call})

    def _parts(self, parts: Sequence[schema.Part], at: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = []
        for index, part in enumerate(parts):
            place = f"{at}[{index}]"
            if isinstance(part, schema.InputImage):
                self.images.append(place)
                result.append({"type": "image_url", "image_url": {"url": part.image_url, "detail": part.detail}})
            elif isinstance(part, schema.Refusal):
                result.append({"type": "refusal", "refusal": part.refusal})
            else:
                text = json_text(part.data, f"{place}.data") if isinstance(part, schema.InputJson) else part.text
                result.append({"type": "text", "text": text})
        return result


def _flat(call: schema.FunctionCall | schema.CustomToolCall) -> str:
    """Name of a called tool with its namespace, as Responses writes it."""
    return call.name if call.namespace is None else f"{call.namespace}__{call.name}"


def _check_role(part: schema.Part, role: str, at: str) -> None:
    if isinstance(part, (schema.InputImage, schema.InputJson)) and role != "user":
        raise InvalidRequestError("Only a user's message has images and JSON.", param=at)
    if isinstance(part, schema.Refusal) and role != "assistant":
        raise InvalidRequestError("Only an assistant's message has refusals.", param=at)


def json_text(data: Any, at: str) -> str:
    """A JSON part as the model sees it.

    Raises:
        InvalidRequestError: it has too many levels, values or bytes.
    """
    values, levels, layer = 1, 0, [data]
    while layer and values <= MAX_JSON_VALUES and levels <= MAX_JSON_LEVELS:
        containers = [value for value in layer if isinstance(value, (dict, list))]
        levels += bool(containers)
        layer = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
        values += len(layer)
    text = msgspec.json.encode(data) if not layer else b""
    if not text or len(text) > MAX_JSON_BYTES:
        raise InvalidRequestError(
            f"'{at}' is too large: up to {MAX_JSON_LEVELS} levels, {MAX_JSON_VALUES} values and {MAX_JSON_BYTES} bytes "
            "of compact JSON are supported.",
            param=at,
        )
    return text.decode()
