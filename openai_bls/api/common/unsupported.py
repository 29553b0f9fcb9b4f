"""Unsupported fields: accepted at the values at which they change nothing, otherwise refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from openai_bls.core.errors import InvalidRequestError


class Unsupported(msgspec.Struct, frozen=True):
    """An unsupported field."""

    values: tuple[Any, ...]
    """Values at which the field changes nothing; null always does."""
    advice: str
    """Reason, or what to do instead, for the refusal."""

    def allows(self, value: Any) -> bool:
        """True if the field may be `value`; UNSET is a field that was left out."""
        if value is UNSET or value is None:
            return True
        # To Python false is 0, to a client it is not.
        return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in self.values)


def first_unsupported(values: Mapping[str, Any], fields: Mapping[str, Unsupported]) -> str | None:
    """Name of the first of `fields` whose value, of `values` by name, is not allowed; None if all are."""
    return next((name for name, known in fields.items() if not known.allows(values.get(name, UNSET))), None)


def refuse_unsupported(values: Mapping[str, Any], fields: Mapping[str, Unsupported], at: str = "") -> None:
    """Refuse a field that is neither left out, nor null, nor at a value that changes nothing.

    Args:
        values: values by the names of their fields.
        fields: the unsupported ones, by name.
        at: path of the object that has them, e.g. `tools[0].`.

    Raises:
        InvalidRequestError: `param` is the field.
    """
    name = first_unsupported(values, fields)
    if name is None:
        return
    allowed = " or ".join(json.dumps(value) for value in (*fields[name].values, None))
    raise InvalidRequestError(
        f"'{at}{name}' is not supported: {fields[name].advice}. It may be left out, or be {allowed}.",
        param=f"{at}{name}",
        code="unsupported_parameter",
    )
