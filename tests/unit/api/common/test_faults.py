from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls.api.common.bodies import fault
from openai_bls.api.common.faults import Fault, converted, decoded
from openai_bls.api.common.unsupported import Unsupported, first_unsupported, refuse_unsupported
from openai_bls.core.errors import InvalidRequestError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    count: int


class Body(msgspec.Struct, forbid_unknown_fields=True):
    inner: list[Inner]


DECODER = msgspec.json.Decoder(Body)


def told(what: Fault) -> InvalidRequestError:
    return InvalidRequestError("|".join((what.kind, what.path, what.name, what.message)), param=what.field)


@pytest.mark.parametrize(
    ("value", "kind", "path", "name", "field"),
    [
        ({}, "missing", "", "inner", "inner"),
        ({"inner": [], "what": 1}, "unknown", "", "what", "what"),
        ({"inner": 3}, "value", "inner", "", "inner"),
        ({"inner": [{"count": 1}, {}]}, "missing", "inner[1]", "count", "inner[1].count"),
        ({"inner": [{"count": 1, "a`b": 2}]}, "unknown", "inner[0]", "a`b", "inner[0].a`b"),
        ({"inner": [{"count": 1, "a\nb": 2}]}, "unknown", "inner[0]", "a\nb", "inner[0].a\nb"),
        ({"inner": [{"count": "x"}]}, "value", "inner[0].count", "", "inner[0].count"),
        ({"inner": [{"count": 1, "": 2}]}, "unknown", "inner[0]", "", "inner[0]."),
        ([], "value", "", "", ""),
    ],
)
def test_what_is_wrong(value: Any, kind: str, path: str, name: str, field: str) -> None:
    with pytest.raises(InvalidRequestError) as text:
        decoded(DECODER, msgspec.json.encode(value), told)
    with pytest.raises(InvalidRequestError) as decoded_already:
        converted(value, Body, told)
    for caught in (text, decoded_already):
        said = caught.value.message.split("|")
        assert said[:3] == [kind, path, name]
        assert " - at " not in said[3]
        assert caught.value.param == field


@pytest.mark.parametrize(
    ("at", "path", "joined"),
    [("", "a", "a"), ("x[0]", "a.b", "x[0].a.b"), ("x", "[1].a", "x[1].a"), ("x", "", "x"), ("", "", "")],
)
def test_faults_below_something(at: str, path: str, joined: str) -> None:
    assert Fault("value", path, "", "m").below(at).path == joined
    assert Fault("missing", path, "n", "m").below(at).field == ".".join(filter(None, (joined, "n")))


@pytest.mark.parametrize("text", [b"", b"{", b'{"inner":[],}', b'{"inner":"\xff"}', b"[" * 100_000])
def test_no_json(text: bytes) -> None:
    with pytest.raises(InvalidRequestError) as whole:
        decoded(msgspec.json.Decoder(), text, fault)
    assert whole.value.param is None
    with pytest.raises(InvalidRequestError) as part:
        decoded(msgspec.json.Decoder(), text, fault, param="tools")
    assert part.value.param == "tools"
    assert "'tools'" in part.value.message


def test_what_is_as_it_should_be() -> None:
    assert decoded(DECODER, b'{"inner":[{"count":1}]}', fault) == Body([Inner(1)])
    assert converted({"inner": [{"count": 1}]}, Body, fault) == Body([Inner(1)])


@pytest.mark.parametrize(
    ("neutral", "value", "allowed"),
    [
        ((), None, True),
        ((), msgspec.UNSET, True),
        ((), False, False),
        ((False,), False, True),
        # In Python they are equal.
        ((False,), 0, False),
        ((1,), True, False),
        ((1,), 1.0, True),
        (({"a": []}, "x"), {"a": []}, True),
    ],
)
def test_neutral_values(neutral: tuple[Any, ...], value: Any, allowed: bool) -> None:
    known = {"ok": Unsupported((), ""), "field": Unsupported(neutral, "do that")}
    assert first_unsupported({"field": value}, known) == (None if allowed else "field")
    if not allowed:
        with pytest.raises(InvalidRequestError, match="do that") as caught:
            refuse_unsupported({"field": value}, known, "at[0].")
        assert (caught.value.param, caught.value.code) == ("at[0].field", "unsupported_parameter")
