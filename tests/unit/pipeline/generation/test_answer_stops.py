"""Stop strings end the answer alone: not thoughts, not arguments of calls, however the tokens are cut into deltas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.answer_stops import AnswerStops
from openai_bls.output.events import OutputParser
from openai_bls.output.harmony import HarmonyParser
from openai_bls.output.reasoning_forms import REASONINGS
from openai_bls.output.reasoning_parser import ReasoningParser
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.output.tool_parsers.families.json_calls import hermes
from openai_bls.output.tool_parsers.parser import ToolCallParser
from tests.unit.api.http_support import asked
from tests.unit.api.responses.responses_support import THINKS_AND_CALLS
from tests.unit.core_support import EOS, Bench, events, token_ids
from tests.unit.pipeline.generation.test_generation import CALL, Run

STOPS = ("\n", "END", "<", "}", "b")
PIECES = st.sampled_from(["a", "b", "\n", "E", "END", "ND", "<", "}", " ", "é", "中"])
TEXT = st.lists(PIECES, max_size=6).map("".join)
THOUGHTS = st.lists(st.sampled_from(["a", "b", "END", "}", "<x", "é"]), max_size=4).map("".join)


def parser() -> OutputParser:
    return ReasoningParser(REASONINGS["think"], opened=False, inner=ToolCallParser(hermes.SYNTAX))


def cut(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, bool]:
    """The text up to the stop string that is complete first, of several the longest."""
    ends = {text.find(stop) + len(stop): stop for stop in sorted(stops, key=len) if stop in text}
    if not ends:
        return text, False
    end = min(ends)
    return text[: end if include else end - len(ends[end])], True


def run_of(
    inner: OutputParser, deltas: list[list[int]], reason: str, stops: tuple[str, ...], include: bool, **options: Any
) -> Run:
    run = Run(parser=AnswerStops(inner, StopMatcher(stops, include)) if stops else inner, **options)
    for delta in deltas:
        run.deliver(0, delta)
    run.deliver(0, [], reason, stop_token_id=EOS if reason == "stop" else None)
    assert run.ends == 1
    return run


def told(run: Run) -> tuple[Any, ...]:
    thoughts = "".join(event[2] for event in run.writer.events if event[0] == "reasoning")
    count = sum(event[0] == "call" for event in run.writer.events)
    calls = [run.writer.arguments(at) for at in range(count)]
    return thoughts, run.writer.content(), calls, run.writer.reasons()[0]


STOPS_OF_ONE = st.lists(st.sampled_from(STOPS), max_size=3, unique=True)


@given(THOUGHTS, TEXT, st.integers(0, 2), STOPS_OF_ONE, st.booleans(), st.data())
def test_the_answer_is_cut_and_nothing_else(
    thoughts: str, text: str, calls: int, stops: list[str], include: bool, drawn: st.DataObject
) -> None:
    whole = (f"<think>{thoughts}</think>" if thoughts else "") + text + CALL * calls
    ids = token_ids(whole)
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    deltas = [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    reason = drawn.draw(st.sampled_from(["stop", "length"]))
    # What the same tokens are without stop strings, cut afterwards.
    bare = told(run_of(parser(), deltas, reason, (), include))
    content, stopped = cut(bare[1], tuple(stops), include)
    expected = (bare[0], content, [] if stopped else bare[2], "stop" if stopped else bare[3])
    assert told(run_of(parser(), deltas, reason, tuple(stops), include)) == expected


# Of a text in which a call may begin, the token at a stop string's start may be told too.
PLAIN = st.lists(PIECES.filter(lambda piece: piece != "<"), max_size=6).map("".join)


@given(PLAIN, st.sampled_from(STOPS), st.booleans())
def test_log_probabilities_are_of_what_is_sent(text: str, stop: str, include: bool) -> None:
    content, _ = cut(text, (stop,), include)
    bench = Bench()
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "stop": stop,
        "include_stop_str_in_output": include,
        "logprobs": True,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }

    def feed() -> None:
        for token_id in token_ids(text):
            bench.engine.deliver(0, [token_id])
        # One that is cut drops what may begin a call.
        bench.engine.deliver(0, [], "stop", stop_token_id=EOS)

    choice = asked(bench, "/v1/chat/completions", body, feed).json()["choices"][0]
    assert (choice["message"]["content"] or "") == content
    tokens = b"".join(bytes(one["bytes"]) for one in (choice["logprobs"] or {"content": []})["content"] or [])
    assert tokens == content.encode()


def test_channels_of_harmony() -> None:
    text = (
        "<|channel|>analysis<|message|>END of it<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": "END"}<|call|>'
    )
    run = run_of(HarmonyParser(has_tools=True), [token_ids(text)], "stop", ("END", '"'), False)
    assert told(run) == ("END of it", "", ['{"a": "END"}'], "tool_calls")
    text = "<|channel|>analysis<|message|>END<|end|><|start|>assistant<|channel|>final<|message|>one END two"
    assert told(run_of(HarmonyParser(has_tools=True), [token_ids(text)], "length", ("END",), False)) == (
        *("END", "one ", []),
        "stop",
    )


@pytest.mark.parametrize("stop_strings", ["answer", "output"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_setting_has_all_output_searched(stop_strings: str, stream: bool) -> None:
    bench = Bench(formats=THINKS_AND_CALLS, stop_strings=stop_strings)
    body = {"messages": [{"role": "user", "content": "hi"}], "stop": ["\n"], "stream": stream}
    answer = asked(bench, "/v1/chat/completions", body, lambda: bench.engine.deliver(0, "<think>a\nb</think>c\nd"))
    if stream:
        pieces = [json.loads(event)["choices"][0]["delta"] for event in events(answer.body) if event != "[DONE]"]
    else:
        pieces = [answer.json()["choices"][0]["message"]]
    found = ["".join(piece.get(name) or "" for piece in pieces) for name in ("reasoning", "content")]
    assert found == (["a\nb", "c"] if stop_strings == "answer" else ["a", ""])
    assert len(bench.engine.cancelled) == 1


def test_an_answer_of_calls_alone_is_not_searched() -> None:
    bench = Bench()
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "stop": ["\n", "a"],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
    }
    answer = asked(bench, "/v1/chat/completions", body, lambda: bench.engine.deliver(0, f"\n{CALL}\n", "stop"))
    choice = answer.json()["choices"][0]
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"a": 1}']
    assert choice["finish_reason"] == "tool_calls"


MARK = "<|im_start|>"


@pytest.mark.parametrize(
    ("stop", "content", "calls"),
    [
        (MARK, "a", 0),
        (f"a{MARK}b", "", 0),
        (f"b{MARK}", "ab", 1),
        (f"b{CALL}", "ab", 1),
        ("x<|im_end|>", "ab", 1),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_special_tokens_end_an_answer_and_neither_thoughts_nor_calls(
    stop: str, content: str, calls: int, at_once: bool
) -> None:
    """In the places of `MARK` the model writes the special token."""
    bench = Bench(formats=THINKS_AND_CALLS)
    special = bench.model.detokenizers.special.ids[MARK][0]
    pieces = [f"<think>c{MARK}d</think>", f"a{MARK}b", CALL.replace("1", f"{MARK}1")]
    ids = [one for text in "".join(pieces).split(MARK) for one in [*token_ids(text), special]][:-1]
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "stop": stop,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }

    def feed() -> None:
        for some in [ids] if at_once else [[one] for one in ids]:
            bench.engine.deliver(0, some)
        bench.engine.deliver(0, [], "stop", stop_token_id=EOS)

    message = asked(bench, "/v1/chat/completions", body, feed).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"] or "") == ("cd", content)
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    assert arguments == ['{"a": 1}'] * calls


@pytest.mark.parametrize(("stop", "content"), [("<|im_end|>", "ab\n"), ("b\n<|im_end|>", "a"), ("x<|im_end|>", "ab\n")])
def test_the_end_token_may_be_the_last_of_a_stop_string(stop: str, content: str) -> None:
    bench = Bench(formats=THINKS_AND_CALLS)
    body = {"messages": [{"role": "user", "content": "hi"}], "stop": [stop]}

    def feed() -> None:
        bench.engine.deliver(0, "<think>b\n</think>ab\n")
        bench.engine.deliver(0, [], "stop", stop_token_id=EOS)

    choice = asked(bench, "/v1/chat/completions", body, feed).json()["choices"][0]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("b", content)
    assert choice["finish_reason"] == "stop"
