from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.output.stop_strings import StopMatcher, _automata
from tests.unit.output.parsing import check_linear_cost, cut

moderate = settings(deadline=None, max_examples=300)
words = st.text("ab", min_size=1, max_size=5)
alphabets = st.sampled_from(["a", "ab", "ab你\n"])


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition, read off the whole text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    text, matched = "", None
    for piece in pieces:
        emitted, matched = matcher.push(piece)
        text += emitted
    return text + matcher.finish(), matched


@moderate
@given(
    data=st.data(),
    stops=st.lists(words, min_size=1, max_size=5),
    counts=st.lists(st.integers(0, 4), max_size=30),
    include=st.booleans(),
)
def test_equals_the_reference(data: st.DataObject, stops: list[str], counts: list[int], include: bool) -> None:
    text = data.draw(alphabets.flatmap(lambda alphabet: st.text(alphabet, max_size=40)))
    matcher = StopMatcher(stops, include)
    assert run(matcher, cut(text, counts)) == reference(text, stops, include)
    assert matcher.matched == reference(text, stops, include)[1]


@moderate
@given(text=st.text("ab", max_size=30), stops=st.lists(words, min_size=1, max_size=4))
def test_holds_back_exactly_what_may_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for place, char in enumerate(text, start=1):
        emitted, matched = matcher.push(char)
        sent += emitted
        if matched:
            break
        held = text[len(sent) : place]
        assert text[:place] == sent + held
        possible = [n for stop in stops for n in range(len(stop)) if text[:place].endswith(stop[:n])]
        assert len(held) == max(possible)


def test_examples() -> None:
    matcher = StopMatcher(["\n\n", "<|end|>"])
    assert matcher.push("one\n") == ("one", None)
    assert matcher.push("two <|") == ("\ntwo ", None)
    assert matcher.push("en") == ("", None)
    assert matcher.push("d|> three") == ("", "<|end|>")
    assert matcher.push("four") == ("", "<|end|>")
    assert matcher.finish() == ""
    assert StopMatcher(["abcd", "bc"]).push("xabcd") == ("xa", "bc")
    assert StopMatcher(["bc", "abc"]).push("xabcd") == ("x", "abc")
    assert StopMatcher(["bc", "abc"], True).push("xabcd") == ("xabc", "abc")
    assert StopMatcher(["👍", "]^-\\"]).push("好]^-\\") == ("好", "]^-\\")
    assert StopMatcher(["\0"]).push("a\0b") == ("a", "\0")


@pytest.mark.parametrize("stops", [[], [""], ["a", ""]])
def test_empty_stops_are_refused(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(stops)


def test_adversarial_stops_take_linear_time() -> None:
    stops = ["a" * 5000 + "b", "a" * 4999 + "c", *("a" * n + "d" for n in range(1, 300))]
    matcher = StopMatcher(stops)
    assert run(matcher, ["a"] * 60_000) == ("a" * 60_000, None)
    check_linear_cost(lambda length: [matcher.push("a") for _ in range(length)])


def test_large_sets_are_not_kept_all() -> None:
    for at in range(40):
        StopMatcher([f"{at}-{other}-" + "x" * 900 for other in range(16)])
    assert _automata._states <= _automata._MAX_STATES + 16_000
    assert 1 <= len(_automata._kept) < 40
