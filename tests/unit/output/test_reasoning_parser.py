from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.events import ContentDelta, ReasoningDelta
from openai_bls.output.reasoning_parser import Reasoning, ReasoningParser
from openai_bls.output.tool_parsers.families import hermes
from openai_bls.output.tool_parsers.parser import ToolCallParser
from tests.unit.output.parsing import (
    Found,
    check_every_split,
    check_linear_time,
    content,
    cut,
    cut_lengths,
    moderate,
    run,
)

THINK = Reasoning("<think>", "</think>")
MAGISTRAL = Reasoning("[THINK]", "[/THINK]")
SEED = Reasoning("<seed:think>", "</seed:think>", also="<seed:cot_budget_reflect>")

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def new(opened: bool = False, tools: bool = True) -> ReasoningParser:
    return ReasoningParser(THINK, opened=opened, inner=ToolCallParser(hermes.SYNTAX) if tools else None)


def reasoning(text: str) -> tuple[str, str]:
    return ("reasoning", text)


F = ("call", "f", '{"a": 1}')

# (the prompt has opened it, text) → what is found
EXAMPLES: dict[tuple[bool, str], Found] = {
    (False, ""): [],
    (False, "Hello <b> </think> x"): [content("Hello <b> </think> x")],
    (False, " \n Hello"): [content(" \n Hello")],
    (False, "<think>\nWell, 你好.\n\n So:\n</think>\n\nHello\n"): [
        reasoning("Well, 你好.\n\n So:"),
        content("Hello\n"),
    ],
    (False, "\n<think>a</think>b"): [reasoning("a"), content("b")],
    (False, "<think>\n\n</think>\n\nb"): [content("b")],
    (False, "<think></think>  b"): [content("  b")],
    (False, "<think>a<b </th></think>"): [reasoning("a<b </th>")],
    (False, "<think>a</think>\n\n"): [reasoning("a")],
    (False, "<think>a</think>\nb<think>c</think>"): [reasoning("a"), content("b<think>c</think>")],
    (False, "<think>a<think>b</think>c"): [reasoning("a<think>b"), content("c")],
    (False, "so <think>a</think>b"): [content("so <think>a</think>b")],
    (False, "<thi"): [content("<thi")],
    (False, " <thinking>"): [content(" <thinking>")],
    (False, "<think>a\nb \n"): [reasoning("a\nb")],
    (False, "<think>a</thi"): [reasoning("a</thi")],
    (False, "<think>"): [],
    (True, ""): [],
    (True, "a"): [reasoning("a")],
    (True, "\na\n</think>\n\nb"): [reasoning("a"), content("b")],
    (True, "\n\n</think>\n\nb"): [content("b")],
    (True, "</think>b"): [content("b")],
    (True, "\n<think>\na</think>b"): [reasoning("a"), content("b")],
    (True, "<thi"): [reasoning("<thi")],
    (True, "  "): [],
    # With tools
    (False, CALL): [F],
    (False, f"<think>\n{CALL}\n</think>\n\n{CALL}"): [reasoning(CALL), F],
    (True, f"a\n</think>\n\nI look.\n{CALL}\n"): [reasoning("a"), content("I look.\n"), F],
    (True, f"a{CALL}"): [reasoning(f"a{CALL}")],
}


@pytest.mark.parametrize(("opened", "text"), EXAMPLES)
def test_examples_however_they_are_cut(opened: bool, text: str) -> None:
    check_every_split(lambda: new(opened), text, EXAMPLES[opened, text])


parts = st.sampled_from(["<think>", "</think>", "<thi", "</", ">", "\n", " ", "text", "你", CALL, "<tool_call>"])


@moderate
@given(text=st.lists(parts, max_size=8).map("".join), lengths=cut_lengths, opened=st.booleans(), tools=st.booleans())
def test_any_cut_equals_the_whole(text: str, lengths: list[int], opened: bool, tools: bool) -> None:
    def parser() -> ReasoningParser:
        return new(opened, tools)

    whole = run(parser(), [text])
    assert run(parser(), cut(text, lengths)) == whole
    if not tools:
        assert whole == reference(text, opened)


def reference(text: str, opened: bool) -> Found:
    """The definition, read off the whole text."""
    begins = text.lstrip().startswith("<think>")
    if not begins and not opened:
        return [content(text)] if text else []
    body = text.lstrip().removeprefix("<think>")
    thought, _, answer = body.partition("</think>")
    found = [reasoning(thought.strip()), content(answer.lstrip("\n"))]
    return [item for item in found if item[1]]


def test_streams_without_delay_and_says_where_it_is() -> None:
    parser = new(tools=False)
    assert not parser.reasoning_open
    assert parser.push("<think>\n") == []
    assert parser.reasoning_open
    assert parser.push("Well ") == [ReasoningDelta("Well")]
    assert parser.push("so <") == [ReasoningDelta(" so")]
    assert parser.push("b>") == [ReasoningDelta(" <b>")]
    assert parser.push("\n</think") == []
    assert parser.reasoning_open
    assert parser.push(">\n") == []
    assert not parser.reasoning_open
    assert parser.push("\nHello") == [ContentDelta("Hello")]
    assert parser.push(" <think>") == [ContentDelta(" <think>")]
    assert not parser.reasoning_open
    assert parser.finish() == []
    assert new(opened=True).reasoning_open


@pytest.mark.parametrize(
    ("kind", "tail", "opened"),
    [
        (THINK, "<｜Assistant｜><think>\n", True),
        (THINK, "<｜Assistant｜><think>", True),
        (THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        (THINK, "<|im_start|>assistant\n", False),
        (THINK, "<|im_start|>user\nwhat is <think><|im_end|>\n<|im_start|>assistant\n", False),
        (THINK, "<｜Assistant｜></think>", False),
        (THINK, "", False),
        (MAGISTRAL, "[/INST][THINK]", True),
        (MAGISTRAL, "[/INST]", False),
        (SEED, "<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>", True),
        (SEED, "<seed:bos>assistant\n<seed:think>", True),
        (SEED, "<seed:bos>assistant\n<seed:cot_budget_reflect>", False),
    ],
)
def test_what_a_prompt_opens(kind: Reasoning, tail: str, opened: bool) -> None:
    assert kind.opened_by(tail) is opened


@pytest.mark.parametrize("kind", [MAGISTRAL, SEED])
def test_other_markers(kind: Reasoning) -> None:
    text = f"{kind.begin}a [b] <c>{kind.end}\n\nd"
    check_every_split(lambda: ReasoningParser(kind, opened=False), text, [reasoning("a [b] <c>"), content("d")])


@pytest.mark.parametrize(("begin", "repeated"), [("", " "), ("<think>", " "), ("<think>a", "\n"), ("<think>", "<")])
def test_long_held_texts_take_linear_time(begin: str, repeated: str) -> None:
    check_linear_time(new, begin, repeated)


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        (False, " <thi", [("content", " ")]),
        (False, "<think>hm</thi", [reasoning("hm")]),
        (True, "hm </thi", [reasoning("hm")]),
        (True, "hm</think>\n\nSo <tool_c", [reasoning("hm"), content("So ")]),
        (True, 'hm</think><tool_call>{"name', [reasoning("hm")]),
        (True, "hm", [reasoning("hm")]),
    ],
)
def test_of_a_text_that_is_cut_no_marker_is_left(opened: bool, text: str, expected: Found) -> None:
    assert run(new(opened), [text], cut_off=True) == expected
    assert run(new(opened), text, cut_off=True) == expected
