"""Fields that are not honoured: taken at the values at which they change nothing, and otherwise refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from openai_bls.core.errors import InvalidRequestError


class Neutral(msgspec.Struct, frozen=True):
    """Values at which a field that is not honoured changes nothing; null always does."""

    values: tuple[Any, ...]
    advice: str

    def allows(self, value: Any) -> bool:
        """Whether the field may be `value`; UNSET is one that was left out."""
        if value is UNSET or value is None:
            return True
        # To Python false is 0, to a client it is not.
        return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in self.values)


def not_honoured(values: Mapping[str, Any], neutral: Mapping[str, Neutral]) -> str | None:
    """The first field that asks for something that is not done here, or None.

    Args:
        values: by the field's name.
        neutral: the fields.
    """
    return next((name for name, known in neutral.items() if not known.allows(values.get(name, UNSET))), None)


def refuse_unless_neutral(values: Mapping[str, Any], neutral: Mapping[str, Neutral], at: str = "") -> None:
    """Refuse a field that is neither left out, nor null, nor at a value that changes nothing.

    Args:
        values: by the field's name.
        neutral: the fields.
        at: where they stand, e.g. `tools[0].`.

    Raises:
        InvalidRequestError: `param` is the field.
    """
    name = not_honoured(values, neutral)
    if name is None:
        return
    allowed = " or ".join(json.dumps(value) for value in (*neutral[name].values, None))
    raise InvalidRequestError(
        f"'{at}{name}' is not supported: {neutral[name].advice}. It may be left out, or be {allowed}.",
        param=f"{at}{name}",
        code="unsupported_parameter",
    )
