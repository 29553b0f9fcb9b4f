"""Harmony, the format of gpt-oss: what it writes, what a grammar lets it write, and how it is recognised."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from openai_bls.api.chat.validation import parse_object
from openai_bls.core.request import ValidRequest
from openai_bls.output.detect import ModelFormats, detect
from openai_bls.output.harmony import MARKERS, HarmonyParser
from openai_bls.pipeline.preparation.constraints import wanted
from tests.unit.api.http_support import asked
from tests.unit.core_support import EOS, Bench, tiny_tokenizer
from tests.unit.output.parsing import (
    Found,
    check_every_split,
    check_linear_time,
    cut,
    cut_lengths,
    moderate,
    run,
)
from tests.unit.output.structured.driving import Vocabulary, made

# What identifies the published template, and no more of it.
TEMPLATE = (
    "{%- if tools %}{{- render_tool_namespace('functions', tools) }}{%- endif %}"
    "{{- 'Reasoning: ' + reasoning_effort }}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}"
    "{{- '<|start|>assistant to=functions.' + tool_call.name + '<|channel|>commentary json<|message|>' }}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}"
    "{%- if add_generation_prompt %}<|start|>assistant{%- endif %}"
)
FORMATS = detect(TEMPLATE)
TAIL = "<|start|>user<|message|>hi<|end|><|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>User asks.<|end|><|start|>assistant"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
ARGUMENTS = '{"city": "Tokyo"}'
CALL = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}"


def parser(*, has_tools: bool = True, reasoning_open: bool = False) -> HarmonyParser:
    return HarmonyParser(has_tools=has_tools, names={"get_weather"}, reasoning_open=reasoning_open)


CALLED = ("call", "get_weather", ARGUMENTS)
CASES: dict[str, tuple[str, Found]] = {
    "final": ("<|channel|>final<|message|>Hi < you|> there<|return|>", [("content", "Hi < you|> there")]),
    "thought and final": (
        THOUGHT + "<|channel|>final<|message|>Arrr.",
        [("reasoning", "User asks."), ("content", "Arrr.")],
    ),
    "call": (THOUGHT + CALL + "<|call|>", [("reasoning", "User asks."), CALLED]),
    "call whose end token was not delivered": (CALL, [CALLED]),
    "recipient before the channel": (
        THOUGHT + f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
        [("reasoning", "User asks."), CALLED],
    ),
    "recipient at the very start": (f" to=functions.get_weather<|channel|>commentary<|message|>{ARGUMENTS}", [CALLED]),
    "call on the channel of thoughts": (CALL.replace("commentary", "analysis"), [CALLED]),
    "constraint without a space": (CALL.replace(" <|constrain|>", "<|constrain|>"), [CALLED]),
    "recipient without a namespace": (CALL.replace("functions.", ""), [CALLED]),
    "recipient without a namespace that is no function": (
        CALL.replace("functions.get_weather", "python"),
        [("reasoning", ARGUMENTS)],
    ),
    "no content type": (CALL.replace(" <|constrain|>json", ""), [CALLED]),
    "line breaks in arguments": (
        CALL.replace(ARGUMENTS, '{\n"city": "Tokyo"\n}'),
        [("call", "get_weather", '{\n"city": "Tokyo"\n}')],
    ),
    "arguments that are no JSON": (CALL.replace(ARGUMENTS, "foo"), [("call", "get_weather", "foo")]),
    "no arguments": (CALL.replace(ARGUMENTS, "") + "<|call|>", [("call", "get_weather", "{}")]),
    "preamble": (
        f"<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant{CALL}<|call|>",
        [("content", "Let me look."), CALLED],
    ),
    "preamble and final": (
        "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>",
        [("content", "One.\nTwo.")],
    ),
    "two calls in one turn": (
        f"{CALL}<|end|><|start|>assistant{CALL}<|call|>",
        [CALLED, CALLED],
    ),
    "nothing after the end": (f"{CALL}<|call|><|start|>assistant{CALL}", [CALLED]),
    "somebody who is not there": (
        "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
        [("reasoning", "{}")],
    ),
    "missing start": (THOUGHT.removesuffix("<|end|><|start|>assistant") + "<|channel|>final<|message|>x", [
        ("reasoning", "User asks."), ("content", "x"),
    ]),
    "cut within a head": ("<|channel|>analysis<|message|>x<|end|><|start|>assistant<|chan", [("reasoning", "x")]),
    "cut within the first head": ("<|channel|>fin", []),
    "no head at all": ("today is <b>", [("content", "today is <b>")]),
    "empty": ("", []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_text(case: str) -> None:
    text, expected = CASES[case]
    check_every_split(parser, text, expected)


def test_without_tools_nobody_is_called() -> None:
    assert run(parser(has_tools=False), [CALL]) == [("reasoning", ARGUMENTS)]


def test_a_thought_that_the_prompt_has_begun() -> None:
    assert run(parser(reasoning_open=True), ["so<|end|><|start|>assistant<|channel|>final<|message|>x"]) == [
        ("reasoning", "so"),
        ("content", "x"),
    ]


WORDS = st.sampled_from([*sorted(MARKERS), "assistant", "analysis", "final", " to=functions.f", "x", "<", "to", "\n"])


@moderate
@given(st.lists(WORDS), cut_lengths)
def test_any_cut(words: list[str], lengths: list[int]) -> None:
    text = "".join(words)
    assert run(parser(), cut(text, lengths)) == run(parser(), [text])


def test_time_is_linear() -> None:
    check_linear_time(parser, "<|channel|>final<|message|>", "<|")


def test_recognised() -> None:
    assert FORMATS.harmony
    assert FORMATS.takes_tools
    assert FORMATS.kept_special(False) == MARKERS
    assert isinstance(FORMATS.parsers(tools=TOOLS, reasoning_open=False)(), HarmonyParser)
    assert detect(None, tool_call_parser="harmony") == detect(None, reasoning_parser="harmony")
    assert detect(TEMPLATE, tool_call_parser="none").tool_format is None
    assert not detect("<|start|>assistant<|channel|>").harmony


# --- grammars


@cache
def vocabulary() -> tuple[Tokenizer, Vocabulary]:
    """A token a byte, and the markers as special tokens."""
    tokenizer = Tokenizer.from_str(tiny_tokenizer().to_str())
    tokenizer.add_special_tokens([AddedToken(marker) for marker in sorted(MARKERS)])
    folder = Path(tempfile.mkdtemp())
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer, Vocabulary(folder, tokenizer.get_vocab_size(), EOS)


def accepts(fields: dict[str, Any], text: str, formats: ModelFormats = FORMATS) -> bool:
    request: ValidRequest = parse_object("chat.completions", {"messages": [{"role": "user", "content": "x"}], **fields})
    found = wanted(request, Bench(formats=formats).model, TAIL)
    assert found is not None
    tokenizer, tokens = vocabulary()
    constraint = tokens.make(made(found.format))
    for token_id in tokenizer.encode(text, add_special_tokens=False).ids:
        if token_id not in tokens.allowed(constraint):
            return False
        assert constraint.accept(token_id)
    return constraint.ended or EOS in tokens.allowed(constraint)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls(choice: Any) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice}
    assert accepts(fields, CALL)
    assert accepts(fields, THOUGHT + CALL)
    assert not accepts(fields, "<|channel|>final<|message|>no")
    assert not accepts(fields, THOUGHT + "<|channel|>final<|message|>no")
    assert not accepts(fields, CALL.replace(ARGUMENTS, "{}"))
    assert not accepts(fields, CALL.replace("get_weather", "other"))
    assert not accepts(fields, CALL + "\n" + CALL)


def test_json_schema_output() -> None:
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}
    assert accepts(fields, THOUGHT + "<|channel|>final<|message|>" + ARGUMENTS)
    assert accepts(fields, "<|channel|>final<|message|>" + ARGUMENTS)
    assert not accepts(fields, THOUGHT + "<|channel|>final<|message|>{}")
    assert not accepts(fields, ARGUMENTS)
    assert accepts({**fields, "tools": TOOLS}, THOUGHT + CALL)


def test_strict_tools_that_are_not_forced() -> None:
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    fields = {"tools": strict}
    assert accepts(fields, THOUGHT + "<|channel|>final<|message|>anything")
    assert accepts(fields, THOUGHT + CALL)
    assert not accepts(fields, THOUGHT + CALL.replace(ARGUMENTS, "{}"))
    assert not accepts(fields, THOUGHT + " to=functions.get_weather<|channel|>commentary json<|message|>{}")


# --- through the APIs


def answered(path: str, body: dict[str, Any], *pieces: str) -> Any:
    bench = Bench(formats=FORMATS)

    def feed() -> None:
        for piece in pieces:
            bench.engine.deliver(0, piece)
        bench.engine.deliver(0, [], finish_reason="stop", stop_token_id=EOS)

    return asked(bench, path, body, feed)


def test_a_chat_completion() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    (choice,) = answered("/v1/chat/completions", body, THOUGHT, CALL).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "User asks."
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    assert choice["message"]["content"] is None


def test_the_turn_ends_although_the_model_goes_on() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    bench = Bench(formats=FORMATS)
    answer = asked(bench, "/v1/chat/completions", body, lambda: bench.engine.deliver(0, CALL + "<|call|>more"))
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"]) == 1
    assert bench.engine.cancelled == [bench.engine.requests[0].request_id]


def test_a_turn_that_is_cut_anywhere_leaves_no_markup() -> None:
    text = THOUGHT + CALL + "<|call|>"
    for end in range(len(text) + 1):
        found = run(parser(), [text[:end]], cut_off=True)
        assert run(parser(), text[:end], cut_off=True) == found
        assert all("User asks.".startswith(one[1]) if one[0] == "reasoning" else one[0] == "call" for one in found)


def test_a_call_that_is_cut_before_its_arguments_is_not_one_without_any() -> None:
    head = CALL.removesuffix(ARGUMENTS)
    assert run(parser(), [head]) == [("call", "get_weather", "{}")]
    assert run(parser(), [head], cut_off=True) == [("call", "get_weather", "")]
    assert run(parser(), [f"{head}{{<|ca"], cut_off=True) == [("call", "get_weather", "{")]
