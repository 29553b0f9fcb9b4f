"""Assembly of streamed chunks: the whole chat completion that they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

SlotT = TypeVar("SlotT")


class _Pieces(list[str]):
    """A text that is still growing."""


def assemble(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer: texts of a choice are joined, everything else is as it was said last.

    Args:
        chunks: chunks whose `choices` are lists; all else in them may be anything.
    """
    answer: dict[str, Any] = {}
    choices: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        answer |= {name: value for name, value in chunk.items() if value is not None and name != "choices"}
        for choice in filter(_is_object, chunk["choices"]):
            known = choices.setdefault(str(choice.get("index", 0)), {"message": {}})
            _add(known["message"], choice.get("delta"))
            known |= {name: value for name, value in choice.items() if value is not None and name != "delta"}
    return {**answer, "object": "chat.completion", "choices": [_joined(choice) for choice in choices.values()]}


def _add(known: dict[str, Any], delta: Any) -> None:
    if not _is_object(delta):
        return
    for name, value in delta.items():
        if name == "tool_calls" and isinstance(value, list):
            calls = _slot(known, name, dict)
            for call in filter(_is_object, value):
                _add(calls.setdefault(str(call.get("index", len(calls))), {}), call)
        elif name in ("function", "custom"):
            _add(_slot(known, name, dict), value)
        elif isinstance(value, str) and name not in ("role", "id", "type", "name"):
            _slot(known, name, _Pieces).append(value)
        elif value is not None and name != "index":
            known[name] = value


def _slot(known: dict[str, Any], name: str, kind: type[SlotT]) -> SlotT:
    """The value of that name; a new one if it is not of that kind."""
    value = known.get(name)
    if not isinstance(value, kind):
        value = known[name] = kind()
    return value


def _joined(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if _is_object(value):
        whole = {name: _joined(item) for name, item in value.items()}
        if isinstance(value.get("tool_calls"), dict):
            whole["tool_calls"] = list(whole["tool_calls"].values())
        return whole
    return value


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
