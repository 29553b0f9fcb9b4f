from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, OverloadedError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.output.detokenizer.factory import from_tokenizer
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.output.tool_parsers.parser import ToolCallParser
from openai_bls.pipeline.generation import Generation
from openai_bls.pipeline.sequence import Sequence
from tests.unit.core_support import EOS, FakeEngineClient, tiny_tokenizer, token_ids

DETOKENIZERS = from_tokenizer(tiny_tokenizer())
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


class Recorder:
    """A writer that keeps the events, and checks that nothing follows an end."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.over = False
        self.raises: Exception | None = None

    def _add(self, *event: Any) -> None:
        assert not self.over
        if self.raises is not None:
            raise self.raises
        self.events.append(event)

    def text(self, sequence: Sequence, text: str) -> None:
        assert text
        self._add("text", sequence.index, text)

    def logprobs(self, sequence: Sequence, tokens: list[TokenLogprob]) -> None:
        assert tokens
        self._add("logprobs", sequence.index, tokens)

    def reasoning(self, sequence: Sequence, text: str) -> None:
        assert text
        self._add("reasoning", sequence.index, text)

    def tool_call(self, sequence: Sequence, index: int, call_id: str, name: str) -> None:
        assert call_id
        self._add("call", sequence.index, index, name)

    def tool_arguments(self, sequence: Sequence, index: int, fragment: str) -> None:
        assert fragment
        self._add("arguments", sequence.index, index, fragment)

    def finished(self, sequence: Sequence, reason: FinishReason) -> None:
        self._add("finished", sequence.index, reason)

    def done(self, usage: Usage) -> None:
        self._add("done", usage)
        self.over = True

    def failed(self, error: ApiError) -> None:
        self.raises = None
        self._add("failed", error)
        self.over = True

    def content(self, index: int = 0) -> str:
        return "".join(event[2] for event in self.events if event[:2] == ("text", index))

    def arguments(self, call: int, index: int = 0) -> str:
        return "".join(event[3] for event in self.events if event[:3] == ("arguments", index, call))

    def reasons(self) -> list[str]:
        return [event[2] for event in self.events if event[0] == "finished"]


class Run:
    """A started generation."""

    def __init__(
        self, count: int = 1, stop: tuple[str, ...] = (), *, include: bool = False, tools: bool = False, **options: Any
    ) -> None:
        self.engine = FakeEngineClient()
        self.writer = Recorder()
        self.ends = 0
        self.sequences = [
            Sequence(
                index,
                GenerationRequest(self.engine.new_request_id(), [1], 100),
                DETOKENIZERS.new(),
                self.writer,
                stops=StopMatcher(stop, include_stop_str_in_output=include) if stop else None,
                parser=ToolCallParser() if tools else None,
                **options,
            )
            for index in range(count)
        ]
        self.generation = Generation(self.engine, self.sequences, self.writer, [5], self._end)
        self.generation.start()
        self.deliver = self.engine.deliver

    def _end(self, generation: Generation, outcome: Any) -> None:
        assert generation is self.generation
        self.outcome = outcome
        self.ends += 1


def test_deltas_become_text_and_an_end() -> None:
    run = Run()
    run.deliver(0, "he")
    run.deliver(0, [])
    run.deliver(0, "y", "stop", stop_token_id=EOS)
    assert run.writer.events == [("text", 0, "he"), ("text", 0, "y"), ("finished", 0, "stop"), ("done", Usage.of(5, 4))]
    assert run.ends == 1
    assert run.engine.cancelled == []


def test_length_survives_and_no_stop_token_is_counted() -> None:
    run = Run()
    run.deliver(0, "abc", "length")
    assert run.writer.reasons() == ["length"]
    assert run.writer.events[-1] == ("done", Usage.of(5, 3))


def test_bytes_that_are_no_character_yet_are_held_and_at_the_end_replaced() -> None:
    first, second, third = token_ids("中")
    run = Run()
    run.deliver(0, [first])
    run.deliver(0, [second])
    assert run.writer.events == []
    run.deliver(0, [third])
    assert run.writer.content() == "中"
    run.deliver(0, [first], "length")
    assert run.writer.content() == "中\ufffd"
    assert run.generation.usage.completion_tokens == 4


def test_an_empty_answer() -> None:
    run = Run()
    run.deliver(0, [], "stop", stop_token_id=EOS)
    assert run.writer.events == [("finished", 0, "stop"), ("done", Usage.of(5, 1))]


def test_a_stop_string_cuts_and_stops_the_engine() -> None:
    run = Run(stop=("END",))
    run.deliver(0, "abE")
    run.deliver(0, "ND and more")
    assert run.writer.content() == "ab"
    assert run.writer.reasons() == ["stop"]
    assert run.engine.cancelled == [run.engine.requests[0].request_id]
    run.deliver(0, "late", "length")
    assert run.writer.events[-1] == ("done", Usage.of(5, 14))
    assert run.ends == 1


def test_a_stop_string_in_the_last_delta_is_a_stop_whatever_the_engine_says() -> None:
    run = Run(stop=("END",))
    run.deliver(0, "abENDx", "length")
    assert run.writer.content() == "ab"
    assert run.writer.reasons() == ["stop"]
    assert run.engine.cancelled == []


def test_half_a_stop_string_at_the_end_is_text() -> None:
    run = Run(stop=("END",))
    run.deliver(0, "abEN", "length")
    assert run.writer.content() == "abEN"
    assert run.writer.reasons() == ["length"]


def test_a_stop_string_may_be_kept() -> None:
    run = Run(stop=("END",), include=True)
    run.deliver(0, "abEND!")
    assert run.writer.content() == "abEND"


def test_a_stop_string_that_ends_in_replaced_bytes() -> None:
    run = Run(stop=("\ufffd",))
    run.deliver(0, [*token_ids("a"), token_ids("中")[0]], "length")
    assert run.writer.content() == "a"
    assert run.writer.reasons() == ["stop"]


def test_several_sequences_end_on_their_own_and_are_summed() -> None:
    run = Run(3)
    run.deliver(1, "b", "length")
    run.deliver(0, "a")
    run.deliver(2, "c", "stop", stop_token_id=EOS)
    assert not run.writer.over
    assert run.ends == 0
    run.deliver(0, "a", "stop", stop_token_id=EOS)
    assert run.writer.events[-1] == ("done", Usage.of(5, 6))
    assert [run.writer.content(i) for i in range(3)] == ["aa", "b", "c"]
    assert run.ends == 1


@pytest.mark.parametrize(
    ("delta", "kind", "message"),
    [
        ({"finish_reason": "error", "error": "no", "invalid": True}, InvalidRequestError, "no"),
        ({"finish_reason": "error", "error": "broken"}, EngineError, "broken"),
        ({"finish_reason": "error"}, EngineError, "The engine failed."),
        ({"finish_reason": "cancelled"}, OverloadedError, "shutting down"),
        ({"finish_reason": "cancelled", "error": "gone"}, OverloadedError, "gone"),
    ],
)
def test_a_failed_sequence_fails_the_request(delta: dict[str, Any], kind: type[ApiError], message: str) -> None:
    run = Run(3)
    run.deliver(0, "a", "length")
    run.deliver(1, "x", **delta)
    name, error = run.writer.events[-1]
    assert name == "failed"
    assert type(error) is kind
    assert message in error.message
    assert run.engine.cancelled == [run.engine.requests[2].request_id]
    run.deliver(2, "late", "length")
    assert run.ends == 1


def test_cancelling_stops_what_runs_and_writes_nothing() -> None:
    run = Run(2)
    run.deliver(0, "a", "length")
    before = list(run.writer.events)
    run.generation.cancel()
    run.generation.cancel()
    run.deliver(1, "late")
    assert run.writer.events == before
    assert run.engine.cancelled == [run.engine.requests[1].request_id]
    assert run.ends == 1


def test_cancelling_after_the_end_is_harmless() -> None:
    run = Run()
    run.deliver(0, "a", "length")
    run.generation.cancel()
    run.generation.fail(EngineError("late"))
    assert run.writer.events[-1][0] == "done"
    assert run.engine.cancelled == []
    assert run.ends == 1


def test_a_bug_while_a_delta_is_taken_ends_the_request_and_not_silently() -> None:
    run = Run(2)
    run.writer.raises = RuntimeError("bug")
    run.deliver(0, "a")
    name, error = run.writer.events[-1]
    assert name == "failed"
    assert type(error) is EngineError
    assert "bug" not in error.message
    assert run.ends == 1
    assert len(run.engine.cancelled) == 2


# --- tool calls ---


def test_a_tool_call_is_told_once_and_ends_in_tool_calls() -> None:
    run = Run(tools=True)
    for char in CALL:
        run.deliver(0, char)
    run.deliver(0, [], "stop", stop_token_id=EOS)
    assert run.writer.events[0] == ("call", 0, 0, "f")
    assert [event for event in run.writer.events if event[0] == "call"] == [("call", 0, 0, "f")]
    assert run.writer.arguments(0) == '{"a": 1}'
    assert run.writer.content() == ""
    assert run.writer.reasons() == ["tool_calls"]


def test_a_call_that_arrives_in_one_delta_with_the_end() -> None:
    run = Run(tools=True)
    run.deliver(0, "Let me see. " + CALL + CALL, "stop", stop_token_id=EOS)
    assert run.writer.content().strip() == "Let me see."
    assert [event[2:] for event in run.writer.events if event[0] == "call"] == [(0, "f"), (1, "f")]
    assert run.writer.arguments(0) == run.writer.arguments(1) == '{"a": 1}'
    assert run.writer.reasons() == ["tool_calls"]


def test_a_call_cut_at_the_length_says_length() -> None:
    run = Run(tools=True)
    run.deliver(0, CALL[:40], "length")
    assert run.writer.reasons() == ["length"]
    assert '{"a": 1}'.startswith(run.writer.arguments(0))


def test_without_a_call_the_answer_is_text() -> None:
    run = Run(tools=True)
    run.deliver(0, "a < b <tool", "stop", stop_token_id=EOS)
    assert run.writer.content() == "a < b <tool"
    assert run.writer.reasons() == ["stop"]


def test_without_tools_the_markers_are_text() -> None:
    run = Run()
    run.deliver(0, CALL, "stop", stop_token_id=EOS)
    assert run.writer.content() == CALL
    assert run.writer.reasons() == ["stop"]


def test_the_second_call_ends_the_answer_if_calls_may_not_be_parallel() -> None:
    run = Run(tools=True, parallel_tool_calls=False)
    run.deliver(0, CALL + "\n" + CALL)
    assert [event[2:] for event in run.writer.events if event[0] == "call"] == [(0, "f")]
    assert run.writer.arguments(0) == '{"a": 1}'
    assert run.writer.reasons() == ["tool_calls"]
    assert run.engine.cancelled == [run.engine.requests[0].request_id]
    assert run.ends == 1


def test_a_stop_string_within_the_arguments() -> None:
    run = Run(tools=True, stop=(": 1",))
    run.deliver(0, CALL)
    assert run.writer.arguments(0) == '{"a"'
    assert run.writer.reasons() == ["stop"]


# --- however the tokens are cut ---

PIECES = st.sampled_from(["a", "b", "ab", "ba", "é", "中", "👍", " ", "\n", "<", CALL, "<tool_call>", "{", "stop"])


@given(
    text=st.lists(PIECES, max_size=8).map("".join),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    stop=st.sampled_from([(), ("ab",), ("b中", "ba"), ("top",), ("\n</tool",), ("👍",)]),
    tools=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
)
@settings(deadline=None, max_examples=200)
def test_how_the_tokens_are_cut_into_deltas_never_matters(
    text: str, cuts: list[int], stop: tuple[str, ...], tools: bool, reason: str
) -> None:
    def outcome(deltas: list[list[int]]) -> tuple[Any, ...]:
        run = Run(stop=stop, tools=tools)
        for delta in deltas:
            run.deliver(0, delta)
        run.deliver(0, [], reason)
        assert run.ends == 1
        calls = [event[2:] for event in run.writer.events if event[0] == "call"]
        arguments = [run.writer.arguments(at) for at in range(len(calls))]
        return run.writer.content(), calls, arguments, run.writer.reasons()

    ids = token_ids(text)
    sizes = itertools.cycle(cuts)
    pieces = []
    rest = list(ids)
    while rest:
        size = next(sizes)
        pieces.append(rest[:size])
        rest = rest[size:]
    whole = outcome([ids])
    assert outcome(pieces) == whole
    if not tools:
        places = [text.find(word) for word in stop if word in text]
        if not places:
            assert whole == (text, [], [], [reason])
        else:
            assert text.startswith(whole[0])
            assert not any(word in whole[0] for word in stop)
            assert whole[3] == ["stop"]


def test_a_writer_that_fails_at_the_end_tells_its_client() -> None:
    run = Run()

    def done(usage: Usage) -> None:
        raise RuntimeError("broken")

    run.writer.done = done  # type: ignore[method-assign]
    run.deliver(0, "a", "length")
    assert isinstance(run.writer.events[-1][1], EngineError)
    assert run.ends == 1
