"""Conversation of a Responses request: items as chat messages.

What a model wrote in one turn, reasoning, text and calls, is several items but one assistant message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_bls.api.responses.errors import Origin
from openai_bls.api.responses.items import Item
from openai_bls.api.responses.sealing import unseal
from openai_bls.api.responses.tools.items import CALL_NAMES, arguments_text, found_text, is_left_out
from openai_bls.api.responses.tools.toolbox import Toolbox
from openai_bls.core.errors import InvalidRequestError

SUMMARY = "Summary of the conversation so far:"
"""Begins the assistant's message that a compaction item is to the model."""


class Conversation:
    """A chat that grows item by item.

    Args:
        toolbox: tools of the request, by which calls have their names.
    """

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self.messages: list[dict[str, Any]] = []
        """Chat messages of the conversation."""
        self.origins: list[Origin] = []
        """Origin of each message."""
        self.images: list[str] = []
        """Path of each image in the body, or the field that it comes from."""
        # The assistant message to which more of the same turn can be added.
        self._turn: dict[str, Any] | None = None
        # Ids of calls, by what an output may call them.
        self._call_ids: dict[str, str] = {}

    def instruct(self, instructions: str) -> None:
        """The instructions of this very request."""
        self._add({"role": "system", "content": instructions}, "instructions")

    def extend(self, items: Sequence[Item], param: str | None = None) -> None:
        """Add items.

        Args:
            items: items that `items` has checked.
            param: the field they come from; None is `input`, item by item.

        Raises:
            InvalidRequestError: a call's output without the call.
        """
        for at, item in enumerate(items):
            self._extend(item, param or f"input[{at}]")

    def ask(self, text: str) -> None:
        """A last message of the user's, which is the server's own."""
        self._add({"role": "user", "content": text}, "input")

    def _extend(self, item: Item, param: str) -> None:
        kind = item["type"]
        if kind == "additional_tools" or is_left_out(item):
            return
        if kind == "message" and item["role"] == "assistant":
            self._said(item["content"], param)
        elif kind == "message":
            self._add({"role": item["role"], "content": self._parts(item["content"], param, "content")}, param)
        elif kind == "reasoning":
            self._thought(item, param)
        elif kind in ("function_call", "custom_tool_call") or kind in CALL_NAMES:
            self._called(item, param)
        elif kind == "compaction":
            summary = unseal("compaction", item["encrypted_content"], f"{param}.encrypted_content")
            self._said([{"type": "output_text", "text": f"{SUMMARY}\n\n{summary}"}], param)
        else:
            self._answered(item, param)

    def _add(self, message: dict[str, Any], param: str) -> None:
        self.messages.append(message)
        self.origins.append(Origin(param, []))
        self._turn = None

    def _assistant(self, param: str, *, new: bool) -> dict[str, Any]:
        """The message of the assistant's turn; a new one if there is none or `new`."""
        if self._turn is None or new:
            message: dict[str, Any] = {"role": "assistant", "content": []}
            self._add(message, param)
            self._turn = message
        return self._turn

    def _complete(self) -> bool:
        """True if the turn has text and no calls: it has ended."""
        turn = self._turn
        return turn is not None and bool(turn["content"]) and "tool_calls" not in turn

    def _said(self, content: list[dict[str, Any]], param: str) -> None:
        turn = self._assistant(param, new=self._complete())
        turn["content"] += [
            {"type": "text", "text": part["text"]} if part["type"] == "output_text" else part for part in content
        ]

    def _thought(self, item: Item, param: str) -> None:
        turn = self._assistant(param, new=self._complete())
        # A summary will do where the reasoning itself has not been kept.
        text = "\n".join(part["text"] for part in item["content"] or item["summary"])
        if text:
            turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def _called(self, item: Item, param: str) -> None:
        turn = self._assistant(param, new=False)
        turn.setdefault("tool_calls", []).append({"id": item["call_id"], **self._call(item)})
        self.origins[-1].calls.append(param)
        self._call_ids[item["call_id"]] = item["call_id"]
        if item["type"] == "local_shell_call":
            # Its output may name either.
            self._call_ids.setdefault(item["id"], item["call_id"])

    def _call(self, item: Item) -> dict[str, Any]:
        kind = item["type"]
        if kind == "custom_tool_call":
            name = self._toolbox.flat_name(item["name"], item.get("namespace"), "custom")
            return {"type": "custom", "custom": {"name": name, "input": item["input"]}}
        if kind == "function_call":
            name, arguments = self._toolbox.flat_name(item["name"], item.get("namespace")), item["arguments"]
        else:
            name, arguments = CALL_NAMES[kind], arguments_text(item)
        return {"type": "function", "function": {"name": name, "arguments": arguments}}

    def _answered(self, item: Item, param: str) -> None:
        field = "call_id" if item.get("call_id") is not None else "id"
        call_id = self._call_ids.get(item[field])
        if call_id is None:
            raise InvalidRequestError(
                f"No tool call found for function call output with {field} {item[field]}.",
                # What has been stored is not in the body.
                param=f"{param}.{field}" if param.startswith("input[") else param,
            )
        output = found_text(item, self._toolbox) if item["type"] == "tool_search_output" else item["output"]
        message = {
            "role": "tool",
            "tool_call_id": call_id,
            "content": output if isinstance(output, str) else self._parts(output, param, "output"),
        }
        if "name" in item:
            message["name"] = item["name"]
        self._add(message, param)

    def _parts(self, parts: list[dict[str, Any]], param: str, field: str) -> list[dict[str, Any]]:
        """Parts of an item's `field` as those of a chat message."""
        result: list[dict[str, Any]] = []
        for at, part in enumerate(parts):
            if part["type"] == "input_image":
                # What has been stored is not in the body.
                self.images.append(f"{param}.{field}[{at}]" if param.startswith("input[") else param)
                image = {"url": part["image_url"], "file_id": part["file_id"], "detail": part["detail"]}
                result.append({"type": "image_url", "image_url": image})
            else:
                result.append({"type": "text", "text": part["text"]})
        return result
