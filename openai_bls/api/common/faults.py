"""Faults of a request body: msgspec's validation errors, parsed so that each API can word them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from openai_bls.api.common.lenient_json import whole_characters
from openai_bls.core.errors import InvalidRequestError

T = TypeVar("T")

# Validation errors are decode errors, too.
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

TOO_DEEP = "The request is nested too deeply."

_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\Z")
_FIELD = re.compile(r"^Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)


class Fault(NamedTuple):
    """A fault of a value: its kind and path."""

    kind: Literal["unknown", "missing", "value"]
    """An unknown field, a missing one, or a value of the wrong type or out of range."""
    path: str
    """Path of the value, or of the object whose field it is: `tools[0].function`; "" is the whole body."""
    name: str
    """The unknown or missing field's; else ""."""
    message: str
    """msgspec's sentence, without the place."""

    @classmethod
    def of(cls, error: msgspec.ValidationError) -> Fault:
        """The fault in msgspec's error message."""
        message, path = str(error), ""
        at = _AT.search(message)
        if at is not None:
            path, message = at["path"], message[: at.start()]
        field = _FIELD.match(message)
        if field is None:
            return cls("value", path, "", message)
        return cls("unknown" if field["what"] == "contains unknown" else "missing", path, field["name"], message)

    @property
    def field(self) -> str:
        """The path of the field at fault."""
        if self.kind == "value":
            return self.path
        return f"{self.path}.{self.name}" if self.path else self.name

    def below(self, at: str) -> Fault:
        """The same fault, of a value at path `at`."""
        joint = "." if at and self.path and not self.path.startswith("[") else ""
        return self._replace(path=f"{at}{joint}{self.path}")


Tell = Callable[[Fault], InvalidRequestError]
"""Maker of an API's own error for a fault."""


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, tell: Tell, param: str | None = None) -> T:
    """Decode JSON text. Half a surrogate pair, which other decoders and encoders let pass, is U+FFFD; a mark of UTF-8
    before the text is skipped.

    Args:
        decoder: decoder of the expected type.
        body: JSON text.
        tell: makes the error of a fault.
        param: the field that holds the text; None if it is the whole body.

    Raises:
        InvalidRequestError: it is not JSON, not what it should be, or nested too deeply.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            mended = whole_characters(body)
            if mended == body:
                raise
            return decoder.decode(mended)
    except _FAULTS as error:
        raise _refusal(error, tell, param) from None


def converted(value: Any, kind: type[T], tell: Tell, *, strict: bool = True) -> T:
    """A decoded value as a `kind`, not `strict` numbers and booleans that are text too; raises as `decoded` does."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except _FAULTS as error:
        raise _refusal(error, tell, None) from None


def _refusal(error: Exception, tell: Tell, param: str | None) -> InvalidRequestError:
    if isinstance(error, msgspec.ValidationError):
        return tell(Fault.of(error))
    if isinstance(error, RecursionError):
        return InvalidRequestError(TOO_DEEP if param is None else f"'{param}' is nested too deeply.", param=param)
    if param is None:
        return InvalidRequestError(f"We could not parse the JSON body of your request: {error}")
    return InvalidRequestError(f"'{param}' is not JSON text: {error}", param=param)
