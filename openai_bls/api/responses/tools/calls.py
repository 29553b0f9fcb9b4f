"""Output items of the model's calls: of functions, of custom tools, and of the client's tool search."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.api.responses.events import Delta, EventWriter, Growing
from openai_bls.api.responses.items import Item, Status
from openai_bls.api.responses.tools.toolbox import Called

# Brackets of arguments that are given as an object; with more it may be too deep to be encoded again.
_MAX_BRACKETS = 256

_decode = msgspec.json.Decoder().decode


class Call(Growing):
    """A call of a function.

    Args:
        index: place among the output items.
        events: writer of the events.
        call_id: id that the call's output will name.
        called: tool of the call.
    """

    prefix = "fc_"
    kind = "function_call"
    field = "arguments"
    """Name of the field with the text, and of its events."""

    def __init__(self, index: int, events: EventWriter, call_id: str, called: Called) -> None:
        super().__init__(index, events)
        self._call = {"call_id": call_id, "name": called.name}
        if called.namespace is not None:
            self._call["namespace"] = called.namespace

    def item(self, status: Status, text: str) -> Item:
        """The call with those arguments so far."""
        return {"id": self.id, "type": self.kind, "status": status, **self._call, self.field: text}

    def _begin(self) -> Delta:
        return self._events.deltas(f"response.{self.kind}_{self.field}.delta", **self._place)

    def _end(self, text: str) -> None:
        done = {self.field: text}
        self._events.event(f"response.{self.kind}_{self.field}.done", **self._place, **done)


class CustomCall(Call):
    """A call of a custom tool."""

    prefix = "ctc_"
    kind = "custom_tool_call"
    field = "input"


class SearchCall(Call):
    """A call of the client's tool search; its arguments come as an object, at the end."""

    prefix = "tsc_"

    def item(self, status: Status, text: str) -> Item:
        """The call with those arguments."""
        call_id = self._call["call_id"]
        head = {"id": self.id, "type": "tool_search_call", "status": status, "execution": "client", "call_id": call_id}
        return {**head, "arguments": _arguments(text)}

    def _begin(self) -> Delta:
        return lambda text, tokens: None

    def _end(self, text: str) -> None:
        pass


def _arguments(text: str) -> Any:
    """Arguments as an object; as text if they are none."""
    if not text:
        return {}
    if text.count("{") + text.count("[") > _MAX_BRACKETS:
        return text
    try:
        found = _decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text
    return found if isinstance(found, dict) else text


_ITEMS: dict[str, type[Call]] = {"function": Call, "custom": CustomCall, "tool_search": SearchCall}


def call_item(called: Called, call_id: str, index: int, events: EventWriter) -> Call:
    """The output item of a call that begins."""
    return _ITEMS[called.kind](index, events, call_id, called)
