from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.events import ContentDelta, ReasoningDelta
from openai_bls.output.reasoning_forms import REASONINGS
from openai_bls.output.reasoning_parser import Reasoning, ReasoningParser
from openai_bls.output.tool_parsers.families.json_calls import hermes
from openai_bls.output.tool_parsers.parser import ToolCallParser
from tests.unit.output.parsing import (
    Found,
    check_every_split,
    check_linear_time,
    content,
    cut,
    cut_lengths,
    merged,
    moderate,
    run,
)

THINK = Reasoning("<think>", "</think>")
MAGISTRAL = REASONINGS["mistral"]
SEED = REASONINGS["seed_oss"]

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
    (False, " \n</think>\n\nb"): [content("b")],
    (False, "</thi"): [content("</thi")],
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
    begins = text.lstrip().startswith(("<think>", "</think>"))
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
        (REASONINGS["deepseek_r1"], "<｜Assistant｜>", True),
        (REASONINGS["deepseek_r1"], "<｜Assistant｜><think>\n\n</think>\n", False),
        (REASONINGS["apriel"], "<|begin_assistant|>\nHere are my reasoning steps:\n", True),
        (REASONINGS["gemma4"], "<|turn>model\n<|channel>thought\n<channel|>", False),
        (REASONINGS["kimi_k3"], '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>', True),
        (REASONINGS["kimi_k3"], '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>', False),
        (REASONINGS["solar_open"], "<|begin|>assistant", False),
    ],
)
def test_what_a_prompt_opens(kind: Reasoning, tail: str, opened: bool) -> None:
    assert kind.opened_by(tail) is opened


every_form = pytest.mark.parametrize("name", REASONINGS)


@every_form
def test_thoughts_and_answer_of_every_form(name: str) -> None:
    kind = REASONINGS[name]
    found: Found = [reasoning("a [b] <c> <|d|>"), content("[e] <f> <|g|>")]
    thought, answer = f"a [b] <c> <|d|>\n{kind.end}", "[e] <f> <|g|>"
    texts = [f"{kind.begin}\n{thought}\n\n{answer}"]
    texts += [f"{kind.begin}{thought}{head}\n{answer}\n{end}\n" for head in kind.heads for end in kind.closers]
    for text in texts:
        check_every_split(lambda: ReasoningParser(kind, opened=False), text, found)
        # As the prompt has opened it, and where it says no more of it.
        begun = text.removeprefix(kind.begin)
        check_every_split(lambda: ReasoningParser(kind, opened=True), begun, found)
        check_every_split(lambda: ReasoningParser(kind, opened=False, held=True), begun, found)


# (form, text) → what is found where the prompt has not opened the reasoning
FORMS: dict[tuple[str, str], Found] = {
    ("gemma4", "<|channel>thought\na\n<channel|>b"): [reasoning("a"), content("b")],
    ("gemma4", "b <|channel> c"): [content("b <|channel> c")],
    ("cohere_command", "<|START_THINKING|>a<|END_THINKING|><|START_TEXT|>b<|END_TEXT|>"): [
        reasoning("a"),
        content("b"),
    ],
    ("cohere_command", "<|START_RESPONSE|>b<|END_RESPONSE|>"): [content("b")],
    ("cohere_command", "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[]<|END_ACTION|>"): [
        reasoning("a"),
        content("<|START_ACTION|>[]<|END_ACTION|>"),
    ],
    ("hy_v3", "<think:opensource>a</think:opensource>b"): [reasoning("a"), content("b")],
    ("hy_v3", "<think>a</think>b"): [content("<think>a</think>b")],
    ("minimax_m3", "</mm:think>b"): [content("b")],
    ("minimax_m3", "<mm:think>a</mm:think>b"): [reasoning("a"), content("b")],
    ("solar_open", "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>"): [reasoning("a"), content("b")],
    ("solar_open", "<|think|>a<|end|><|begin|>assistant<|think|>b<|end|><|begin|>assistant<|content|>c"): [
        reasoning("a\nb"),
        content("c"),
    ],
    ("solar_open", "<|content|>b<|end|>"): [content("b")],
    ("solar_open", "<|begin|>assistant<|content|><|begin|>assistant"): [content("<|begin|>assistant")],
    ("solar_open", "<|think|>a<|end|><|begin|>assistant<|tool_calls|>"): [
        reasoning("a"),
        content("<|tool_calls|>"),
    ],
    (
        "kimi_k3",
        "<|open|>think<|sep|>a <|open|> <|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>"
        "<|close|>message<|sep|>",
    ): [reasoning("a <|open|>"), content("b")],
    ("kimi_k3", "b<|close|>response<|sep|>"): [content("b")],
    ("kimi_k3", "b<|close|>response<|close|>"): [content("b<|close|>response<|close|>")],
    ("muse_glimmer", " to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>"): [
        reasoning("a"),
        content("b"),
    ],
    ("muse_glimmer", " to=self<|message|><|eom|><|start|>assistant to=self<|message|>a<|eom|>"): [reasoning("a")],
    ("muse_glimmer", " to=user<|message|>b"): [content("b")],
    ("apriel", "Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]\nb\n[END FINAL RESPONSE]\n"): [
        reasoning("a"),
        content("b"),
    ],
    ("granite", "Here is my thought process: a\n\nHere is my response:\n\nb"): [reasoning("a"), content("b")],
    ("granite", "Here is Paris."): [content("Here is Paris.")],
    ("hunyuan_a13b", "<think>\na\n</think>\n<answer>\nb</answer > \n\n</answer>\n"): [
        reasoning("a"),
        content("b</answer > "),
    ],
    ("hunyuan_a13b", "<answer>\nb\n</answer>\nc"): [content("b\nc")],
    ("hunyuan_a13b", "b\n</answer>\nc"): [content("b\n</answer>\nc")],
    ("hunyuan_a13b", "<think>a</think>\nb</answer>"): [reasoning("a"), content("b</answer>")],
    ("hunyuan_a13b", "<answer>\n</answer>\n b"): [content("b")],
    ("hunyuan_a13b", "<answer>a\n\n</answ"): [content("a\n\n</answ")],
    ("hunyuan_a13b", "<think>a</think> \n <ans"): [reasoning("a"), content(" \n <ans")],
    ("ernie45", "<think>a</think>\n\n<response>\nb\n</response>\n"): [reasoning("a"), content("b")],
    ("ernie45", "<think>a</think><response>b\n"): [reasoning("a"), content("b\n")],
    ("apertus", "<|inner_prefix|>a<|inner_suffix|>b"): [reasoning("a"), content("b")],
}


@pytest.mark.parametrize(("name", "text"), FORMS)
def test_forms_however_they_are_cut(name: str, text: str) -> None:
    check_every_split(lambda: ReasoningParser(REASONINGS[name], opened=False), text, FORMS[name, text])


@every_form
@moderate
@given(data=st.data(), lengths=cut_lengths, opened=st.booleans(), held=st.booleans(), cut_off=st.booleans())
def test_any_cut_of_any_form_equals_the_whole(
    name: str, data: st.DataObject, lengths: list[int], opened: bool, held: bool, cut_off: bool
) -> None:
    kind = REASONINGS[name]
    marks = [kind.begin, kind.end, *kind.heads, *kind.closers, CALL, "<tool_call>"]
    pieces = [*marks, *(mark[:-1] for mark in marks), *(mark[1:] for mark in marks), "\n", " ", "a", "<"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=8)))
    tools = data.draw(st.booleans())

    def parser() -> ReasoningParser:
        inner = ToolCallParser(hermes.SYNTAX) if tools else None
        return ReasoningParser(kind, opened=opened, inner=inner, calls=("<tool_call>",) if tools else (), held=held)

    def read(pieces: list[str]) -> Found:
        made = parser()
        events = [event for piece in pieces for event in made.push(piece)]
        return merged(events + made.finish(cut=cut_off))

    assert read(cut(text, lengths)) == read([text])


# With tools in a form of calls of which one ends the reasoning
ENDED: dict[tuple[bool, str], Found] = {
    (True, f"a\n{CALL}"): [reasoning("a"), F],
    (False, f"<think>a{CALL}\n</think>\n\n"): [reasoning("a"), F],
    (False, f"<think>a{CALL}</think>\n\nb"): [reasoning("a"), F, content("b")],
    (False, f"<think>a{CALL}{CALL}\n</think>{CALL}"): [reasoning("a"), F, F, F],
    (True, f"a</think>{CALL}b</think>"): [reasoning("a"), F, content("b</think>")],
    (False, f"a{CALL}</think>"): [content("a"), F, content("</think>")],
    (True, f"a <tool_ {CALL}b</think>c</think>"): [reasoning("a <tool_"), F, content("bc</think>")],
}


@pytest.mark.parametrize(("opened", "text"), ENDED)
def test_a_call_ends_reasoning(opened: bool, text: str) -> None:
    def parser() -> ReasoningParser:
        return ReasoningParser(THINK, opened=opened, inner=ToolCallParser(hermes.SYNTAX), calls=("<tool_call>",))

    check_every_split(parser, text, ENDED[opened, text])


# Held until it is known: the prompt has opened nothing
HELD: dict[str, Found] = {
    "\na\n</think>\n\nb": [reasoning("a"), content("b")],
    "a</think>b</think>": [reasoning("a"), content("b</think>")],
    f"a</think>{CALL}": [reasoning("a"), F],
    f" a\n{CALL}</think>": [content(" a\n"), F, content("</think>")],
    " a </thi": [content(" a </thi")],
    "a\n": [content("a\n")],
    "<think>a</think>b": [reasoning("a"), content("b")],
    "<think>a": [reasoning("a")],
}


def test_of_a_held_text_that_is_cut_nothing_is_lost() -> None:
    for name, text in (("think", " a </thi"), ("kimi_k3", "a<|close|>th"), ("deepseek_r1", "a")):
        parser = ReasoningParser(REASONINGS[name], opened=False, held=True)
        assert run(parser, text, cut_off=True) == [content(text)]


@pytest.mark.parametrize("text", HELD)
def test_reasoning_that_nothing_opened_is_found_in_a_whole_answer(text: str) -> None:
    def parser() -> ReasoningParser:
        inner = ToolCallParser(hermes.SYNTAX)
        return ReasoningParser(THINK, opened=False, inner=inner, calls=("<tool_call>",), held=True)

    check_every_split(parser, text, HELD[text])


@pytest.mark.parametrize(("begin", "repeated"), [("", " "), ("<think>", " "), ("<think>a", "\n"), ("<think>", "<")])
def test_long_held_texts_take_linear_time(begin: str, repeated: str) -> None:
    check_linear_time(new, begin, repeated)


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        ("", "a"),
        ("a", "<"),
        ("<think></think>", " "),
        ("<think></think>", "<answer"),
        ("<answer>", "\n"),
        ("<answer>", "</"),
    ],
)
def test_texts_around_a_marked_answer_take_linear_time(begin: str, repeated: str) -> None:
    kind = REASONINGS["hunyuan_a13b"]
    check_linear_time(lambda: ReasoningParser(kind, opened=False, held=True), begin, repeated)


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
