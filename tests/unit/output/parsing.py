"""How the tests of output parsers feed them and read their events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from hypothesis import strategies as st

from openai_bls.output.events import ContentDelta, OutputParser, ReasoningDelta, ToolCallArguments, ToolCallStart

# "content" or "reasoning" and the text; "call", the name and the arguments.
Found = list[tuple[str, ...]]

cut_lengths = st.lists(st.integers(1, 12), max_size=30)


def run(parser: OutputParser, pieces: Iterable[str]) -> Found:
    """What a parser finds, pieces of the same kind joined."""
    found: Found = []
    calls: list[str] = []
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.finish()
    assert parser.finish() == []
    for event in events:
        match event:
            case ContentDelta(text):
                kind = "content"
            case ReasoningDelta(text):
                kind = "reasoning"
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
    """The text gives the same whole, character by character, and cut at every place in two ways."""
    assert run(new(), [text]) == expected
    assert run(new(), list(text)) == expected
    for place in range(len(text)):
        assert run(new(), [text[:place], text[place:]]) == expected
        assert run(new(), [text[:place], *text[place : place + 2], text[place + 2 :]]) == expected


def check_linear_time(new: Callable[[], OutputParser], begin: str, repeated: str) -> None:
    """A text that a parser holds back, character by character, costs each character the same."""

    def cost(length: int) -> float:
        pieces = list(begin + repeated * (length // len(repeated)))
        times = []
        for _ in range(2):
            start = time.process_time()
            run(new(), pieces)
            times.append(time.process_time() - start)
        return min(times)

    # Quadratic would be 64 times as much.
    assert cost(40_000) < 32 * cost(5_000)
