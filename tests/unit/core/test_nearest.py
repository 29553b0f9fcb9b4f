"""The nearest name: one with a mistake is found again, one of other letters is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.commands.table import COMMANDS
from openai_bls.core.nearest import did_you_mean, meant_or_known, nearest
from openai_bls.core.settings import OpenAiBlsSettings

NAMES = (*OpenAiBlsSettings.__struct_fields__, *(command.name for command in COMMANDS))
LONG = [name for name in NAMES if len(name) > 4]


def swapped(name: str, at: int, _: str) -> str:
    return name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]


def left_out(name: str, at: int, _: str) -> str:
    return name[:at] + name[at + 1 :]


def added(name: str, at: int, letter: str) -> str:
    return name[:at] + letter + name[at:]


def changed(name: str, at: int, letter: str) -> str:
    return name[:at] + letter + name[at + 1 :]


@given(
    st.sampled_from(LONG),
    st.sampled_from([swapped, left_out, added, changed]),
    st.integers(0, 99),
    st.sampled_from("qz"),
)
def test_a_mistake(name: str, mistake: object, at: int, letter: str) -> None:
    written = mistake(name, at % len(name), letter)  # type: ignore[operator]
    if written in NAMES:
        return
    found = nearest(written, NAMES)
    # Another name may be as near, and no nearer.
    assert found == name or found in NAMES
    assert nearest(written, [name]) == name
    assert did_you_mean(written, [name]) == f"did you mean {name}?"


@given(st.text("#%&", min_size=1, max_size=30))
def test_other_letters(written: str) -> None:
    assert nearest(written, LONG) == ""
    assert meant_or_known(written, LONG).startswith("known are ")
    assert meant_or_known(written, []) == "known are none"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--modle", "--model"),
        ("--mdoel", "--model"),
        ("--moed", "--mode"),
        ("smolm2", "smollm2"),
        ("http_prot", "http_port"),
        ("tools", ""),
    ],
)
def test_as_people_write(written: str, meant: str) -> None:
    assert nearest(written, ["--mode", "--model", "smollm2", "http_host", "http_port", "--tp-size"]) == meant
