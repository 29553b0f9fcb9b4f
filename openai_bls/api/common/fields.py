"""Fields without effect: one rule for bodies, content parts, messages and tools of every API.

A field of a request is in one of these classes:

- honoured: a field of its struct;
- neutral: in `Unsupported`, taken at the values at which it changes nothing, otherwise refused by name;
- without effect: no value of it can change the answer. It is taken, and named in the response header
  `openai-bls-ignored` and in the log. In a body such fields are those of a base struct named `WithoutEffect...`; in the
  objects inside of a body those in `NESTED`, those in a struct's own `WITHOUT_EFFECT`, and every unknown field of a
  struct with `FROM_A_SERVER`, which is what some server has answered before;
- unknown: refused by name, or taken without effect where the setting `unknown_fields` is `ignore`.

Bodies are decoded straight to structs. Only where a struct does not know a field they are walked, once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec
import msgspec.inspect as mi

from openai_bls.api.common.faults import Fault, Tell, converted, decoded
from openai_bls.core.errors import InvalidRequestError

T = TypeVar("T")

UnknownFields = Literal["refuse", "ignore"]
"""Treatment of unknown fields, as the setting `unknown_fields` says."""

NESTED = frozenset(
    {
        # Hints for caches and routers.
        *("cache_control", "prompt_cache_breakpoint", "uuid", "provider_options", "providerOptions"),
        # What clients and servers keep of an object for themselves.
        *("id", "timestamp", "created_at", "created_by", "index", "phase", "metadata"),
        *("annotations", "logprobs", "extra_content", "thought_signature", "providerMetadata", "provider_metadata"),
        # How a tool is found and how its call is sent, but not what it is.
        *("defer_loading", "eager_input_streaming", "output_schema"),
    }
)
"""Fields without effect in the objects inside of a body: parts, messages, calls, tools."""

_MAX_NAMES = 32
_MAX_NAME_LENGTH = 80
_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]+")


class IgnoredFields:
    """Fields of one request that were taken without effect.

    Args:
        unknown: treatment of unknown fields.
    """

    def __init__(self, unknown: UnknownFields = "refuse") -> None:
        self.takes_unknown = unknown == "ignore"
        self._names: dict[str, None] = {}

    def add(self, path: str) -> None:
        """Note a field by its path, in which places in arrays are left out: `messages[].name`."""
        if len(self._names) >= _MAX_NAMES:
            return
        # What goes to a header and to the log is a name, not whatever a client has put in the place of one.
        if len(path) > _MAX_NAME_LENGTH or not _NAME.fullmatch(path):
            path = "(other)"
        self._names[path] = None

    def add_given(self, struct: msgspec.Struct) -> None:
        """Note the fields without effect that a body has."""
        self._add_given(type(struct), functools.partial(getattr, struct))

    def body(self, body: dict[str, Any], kind: Any) -> dict[str, Any]:
        """A decoded body without the unknown fields that are taken; what is without effect is noted.

        Args:
            body: decoded body; it is not altered.
            kind: struct that it is to become.
        """
        self._add_given(kind, body.get)
        found: dict[str, Any] = known_fields(body, kind, self) if self.takes_unknown else body
        return found

    def _add_given(self, kind: Any, value_of: Callable[[str], Any]) -> None:
        for name in without_effect(kind):
            if not is_empty(value_of(name)):
                self.add(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Paths of the fields, each once, at most 32."""
        return tuple(self._names)


def is_empty(value: Any) -> bool:
    """True for what says as much as a field that is left out: null, false and nothing at all."""
    return value is None or value is msgspec.UNSET or value is False or value in ("", [], {})


@functools.cache
def without_effect(cls: Any) -> tuple[str, ...]:
    """Fields without effect of a body, by their names in the struct."""
    found: list[str] = []
    for base in getattr(cls, "__mro__", ()):
        if base.__name__.startswith("WithoutEffect"):
            inherited = getattr(base.__mro__[1], "__struct_fields__", ())
            own: tuple[str, ...] = getattr(base, "__struct_fields__", ())
            found += [name for name in own if name not in inherited]
    return tuple(found)


def decoded_body(decoder: msgspec.json.Decoder[T], body: bytes, tell: Tell, ignored: IgnoredFields) -> T:
    """A body as the struct of a decoder; the fields of it that are without effect are noted.

    Raises:
        InvalidRequestError: it is not JSON, not what it should be, or nested too deeply.
    """

    def without_unknown() -> T:
        value = known_fields(decoded(_ANY, body, tell), decoder.type, ignored)
        return converted(value, decoder.type, tell)

    found = _tried(lambda note: decoded(decoder, body, note), without_unknown, tell)
    if isinstance(found, msgspec.Struct):
        ignored.add_given(found)
    return found


def converted_fields(
    value: Any, kind: type[T], tell: Tell, ignored: IgnoredFields, at: str = "", *, strict: bool = True
) -> T:
    """A decoded value as a `kind`; the fields of it that are without effect are noted.

    Args:
        value: decoded value; it is not altered.
        kind: struct, or union of structs.
        tell: makes the error of a fault.
        ignored: receiver of the names.
        at: path of the value, with `[]` for places in arrays; "" is the whole body.
        strict: numbers and booleans may not be text.

    Raises:
        InvalidRequestError: it is not what it should be, or nested too deeply.
    """

    def without_unknown() -> T:
        return converted(known_fields(value, kind, ignored, at), kind, tell, strict=strict)

    found = _tried(lambda note: converted(value, kind, note, strict=strict), without_unknown, tell)
    if not at and isinstance(found, msgspec.Struct):
        ignored.add_given(found)
    return found


def _tried(first: Callable[[Tell], T], again: Callable[[], T], tell: Tell) -> T:
    """Result of `first`, or of `again` where a field is unknown."""
    unknown = False

    def note(fault: Fault) -> InvalidRequestError:
        nonlocal unknown
        unknown = fault.kind == "unknown"
        return tell(fault)

    try:
        return first(note)
    except InvalidRequestError:
        if not unknown:
            raise
    return again()


_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def known_fields(value: Any, kind: Any, ignored: IgnoredFields, at: str = "") -> Any:
    """A decoded value without its fields that are without effect, which are noted.

    Args:
        value: decoded value; it is not altered.
        kind: type that it is to become.
        ignored: receiver of the names.
        at: path of the value.
    """
    return _Walk(ignored).value(value, _type_info(kind), at)


@functools.cache
def _type_info(kind: Any) -> mi.Type:
    return mi.type_info(kind)


@functools.cache
def _fields_of(cls: Any) -> dict[str, mi.Type]:
    info = _type_info(cls)
    assert isinstance(info, mi.StructType)
    return {field.encode_name: field.type for field in info.fields}


class _Walk:
    def __init__(self, ignored: IgnoredFields) -> None:
        self._ignored = ignored

    def value(self, value: Any, kind: mi.Type, at: str) -> Any:
        if isinstance(kind, mi.Metadata):
            kind = kind.type
        if isinstance(value, dict):
            struct = _struct_for(value, kind)
            return value if struct is None else self._object(value, struct, at)
        if isinstance(value, list):
            items = _list_type(kind)
            return value if items is None else [self.value(item, items, f"{at}[]") for item in value]
        return value

    def _object(self, value: dict[str, Any], struct: mi.StructType, at: str) -> dict[str, Any]:
        known = _fields_of(struct.cls)
        result: dict[str, Any] = {}
        for name, item in value.items():
            path = f"{at}.{name}" if at else name
            kind = known.get(name)
            if kind is not None:
                result[name] = self.value(item, kind, path)
            elif name == struct.tag_field or not self._drops(struct.cls, name, item, at):
                result[name] = item
            elif not is_empty(item):
                self._ignored.add(path)
        return result

    def _drops(self, cls: Any, name: str, item: Any, at: str) -> bool:
        """True if an unknown field is without effect, or may be taken for another reason."""
        if self._ignored.takes_unknown:
            return True
        if not at:
            return False
        own: frozenset[str] = getattr(cls, "WITHOUT_EFFECT", frozenset())
        # Null always means the default, and some clients send it for every field that some message has.
        return item is None or name in NESTED or name in own or getattr(cls, "FROM_A_SERVER", False)


def _struct_for(value: dict[str, Any], kind: mi.Type) -> mi.StructType | None:
    """The struct that an object is to become; None if it is none, or if that cannot be told."""
    if isinstance(kind, mi.StructType):
        return kind
    if not isinstance(kind, mi.UnionType):
        return None
    structs = [_plain(member) for member in kind.types]
    found = [struct for struct in structs if isinstance(struct, mi.StructType)]
    if len(found) == 1:
        return found[0]
    return next((s for s in found if s.tag_field is not None and value.get(s.tag_field) == s.tag), None)


def _list_type(kind: mi.Type) -> mi.Type | None:
    """The type of the items of an array; None if it is none of structs."""
    members = kind.types if isinstance(kind, mi.UnionType) else (kind,)
    lists = [found for member in members if isinstance(found := _plain(member), mi.ListType)]
    return next((found.item_type for found in lists if _holds_structs(found.item_type)), None)


def _holds_structs(kind: mi.Type) -> bool:
    members = kind.types if isinstance(kind, mi.UnionType) else (kind,)
    return any(isinstance(_plain(member), (mi.StructType, mi.ListType)) for member in members)


def _plain(kind: mi.Type) -> mi.Type:
    return kind.type if isinstance(kind, mi.Metadata) else kind
