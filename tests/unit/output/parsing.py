"""Drivers of output parsers for their tests: pieces of text in, merged events out."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from openai_bls.output.events import (
    AnswerEnd,
    ContentDelta,
    Event,
    OutputParser,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from openai_bls.output.tool_parsers.parser import Syntax

# "content" or "reasoning" and the text; "call", the name and the arguments.
Found = list[tuple[str, ...]]


class Form(NamedTuple):
    """A form of tool calls, and texts to read."""

    syntax: Syntax
    examples: Mapping[str, Found]
    parts: Sequence[str]
    """Pieces of texts at random."""
    slow: Sequence[tuple[str, str]]
    """Beginnings of texts that are held back, and what is repeated after them."""


moderate = settings(deadline=None, max_examples=60)
cut_lengths = st.lists(st.integers(1, 12), max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def content(text: str) -> tuple[str, str]:
    return ("content", text)


def run(parser: OutputParser, pieces: Iterable[str], *, cut_off: bool = False) -> Found:
    """What a parser finds, pieces of the same kind joined; `cut_off` is `cut` of `finish`."""
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.finish(cut=cut_off)
    assert parser.finish() == []
    return merged(events)


def merged(events: Iterable[Event]) -> Found:
    """What events tell, pieces of the same kind joined."""
    found: Found = []
    calls: list[str] = []
    for event in events:
        match event:
            case ContentDelta(text):
                kind = "content"
            case ReasoningDelta(text):
                kind = "reasoning"
            case AnswerEnd():
                continue
            case ToolCallStart(index, call_id, name):
                assert index == len(calls)
                assert call_id not in calls
                calls.append(call_id)
                found.append(("call", name, ""))
                continue
            case ToolCallArguments(index, text):
                assert found[-1][0] == "call"
                assert index == len(calls) - 1
                assert text
                _, name, arguments = found.pop()
                found.append(("call", name, arguments + text))
                continue
        assert text
        if found and found[-1][0] == kind:
            text = found.pop()[1] + text
        found.append((kind, text))
    return found


def cut(text: str, lengths: Sequence[int]) -> list[str]:
    """The text in pieces of these lengths, and the rest."""
    pieces, place = [], 0
    for length in lengths:
        pieces.append(text[place : place + length])
        place += length
    return [*pieces, text[place:]]


def check_every_split(new: Callable[[], OutputParser], text: str, expected: Found) -> None:
    """The text gives the same whole, character by character, and cut at every place, at some of them in two ways."""
    assert run(new(), [text]) == expected
    assert run(new(), list(text)) == expected
    for place in range(len(text)):
        assert run(new(), [text[:place], text[place:]]) == expected
        assert place % 3 or run(new(), [text[:place], *text[place : place + 2], text[place + 2 :]]) == expected


def check_any_cut(
    new: Callable[[], OutputParser], text: str, lengths: Sequence[int], dropped: Iterable[str] = ()
) -> None:
    """Cut anywhere the text gives what the whole gives; without calls that is the text itself, but for markers."""
    whole = run(new(), [text])
    assert run(new(), cut(text, lengths)) == whole
    if all(found[0] == "content" for found in whole):
        for marker in dropped:
            text = text.replace(marker, "")
        assert "".join(found[1] for found in whole) == text


def check_linear_time(new: Callable[[], OutputParser], begin: str, repeated: str) -> None:
    """A text that a parser holds back, character by character, costs each character the same."""
    check_linear_cost(lambda length: run(new(), begin + repeated * (length // len(repeated))))


def check_linear_cost(take: Callable[[int], object]) -> None:
    """Taking a text of a length costs each character the same."""

    def cost(length: int) -> float:
        return min(timeit.repeat(lambda: take(length), timer=time.process_time, number=1, repeat=2))

    # Quadratic would be 64 times as much.
    assert cost(16_000) < 32 * cost(2_000)
