from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, OverloadedError
from openai_bls.core.logprobs import TokenLogprob
from openai_bls.core.request_record import Progress
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.output.stops import StopStrings
from openai_bls.output.tool_parsers.families.json_calls import hermes
from openai_bls.output.tool_parsers.parser import ToolCallParser
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.generation.generation import Generation
from openai_bls.pipeline.generation.sequence import Sequence
from openai_bls.pipeline.generation.sequence_state import SequenceState
from tests.unit.core_support import EOS, FakeEngineClient, tiny_detokenizers, token_ids

DETOKENIZERS = tiny_detokenizers()
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

    def text(self, sequence: SequenceState, text: str) -> None:
        assert text
        self._add("text", sequence.index, text)

    def logprobs(self, sequence: SequenceState, tokens: list[TokenLogprob]) -> None:
        assert tokens
        self._add("logprobs", sequence.index, tokens)

    def reasoning(self, sequence: SequenceState, text: str) -> None:
        assert text
        self._add("reasoning", sequence.index, text)

    def tool_call(self, sequence: SequenceState, index: int, call_id: str, name: str) -> None:
        assert call_id
        self._add("call", sequence.index, index, name)

    def tool_arguments(self, sequence: SequenceState, index: int, fragment: str) -> None:
        assert fragment
        self._add("arguments", sequence.index, index, fragment)

    def finished(self, sequence: SequenceState, reason: FinishReason) -> None:
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
    """A started generation.

    Args:
        count: number of its sequences.
        stop: stop strings.
        include: whether they are part of the answer.
        tools: whether the answer may have tool calls.
        capacity: sequences that the engine runs at once, and which several keys share; None runs all at once.
        options: options of the sequences.
    """

    def __init__(
        self,
        count: int = 1,
        stop: tuple[str, ...] = (),
        *,
        include: bool = False,
        tools: bool = False,
        capacity: int | None = None,
        **options: Any,
    ) -> None:
        self.engine = FakeEngineClient()
        self.writer = Recorder()
        self.ends = 0
        stops = StopStrings(stop, DETOKENIZERS, include_stop_str_in_output=include)
        self.sequences = [
            Sequence(
                index,
                GenerationRequest(self.engine.new_request_id(), [1], 100),
                stops.detokenizer([1]),
                self.writer,
                stops=stops.matcher(),
                marks=stops.marks,
                **{"parser": ToolCallParser(hermes.SYNTAX) if tools else None, **options},
            )
            for index in range(count)
        ]
        self.admission = Admission(
            lambda: capacity or count, OpenAiBlsSettings(), several_keys=lambda: capacity is not None
        )
        ticket = self.admission.ticket("alice", 5, 100, count)
        self.generation = Generation(self.engine, self.sequences, self.writer, [5], self._end, ticket)
        self.generation.start()
        self.deliver = self.engine.deliver

    def _end(self, outcome: Any, progress: Progress) -> None:
        assert progress.usage == self.generation.usage
        self.outcome = outcome
        self.ends += 1


ONE_CALL = [("f", '{"a": 1}')]
END = {"stop": ("END",)}


def test_usage_of_predictions() -> None:
    run = Run(count=2)
    for sequence in run.sequences:
        sequence.request = msgspec.structs.replace(sequence.request, prediction=tuple(token_ids("abcdef")))
    run.deliver(0, "ab", predicted_tokens=2)
    run.deliver(0, "xef", "length", predicted_tokens=1)
    run.deliver(1, "abcdefabc", "length", predicted_tokens=9)
    usage = run.generation.usage
    details = msgspec.to_builtins(usage.completion_tokens_details)
    assert details == {"reasoning_tokens": 0, "accepted_prediction_tokens": 12, "rejected_prediction_tokens": 3}
    assert "accepted_prediction_tokens" not in msgspec.to_builtins(Usage.of(1, 1).completion_tokens_details)


@pytest.mark.parametrize(
    ("options", "deltas", "reason", "text", "calls", "ends_in", "cancelled"),
    [
        ({}, ["he", [], "y"], "stop", "hey", [], "stop", 0),
        ({}, ["abc"], "length", "abc", [], "length", 0),
        ({}, [[]], "stop", "", [], "stop", 0),
        # A stop string cuts and stops the engine; in the last delta it is a stop, whatever the engine says.
        (END, ["abE", "ND and more"], None, "ab", [], "stop", 1),
        (END, ["abENDx"], "length", "ab", [], "stop", 0),
        (END, ["abEN"], "length", "abEN", [], "length", 0),
        ({**END, "include": True}, ["abEND!"], None, "abEND", [], "stop", 1),
        ({"stop": ("\ufffd",)}, [[*token_ids("a"), token_ids("中")[0]]], "length", "a", [], "stop", 0),
        # A special token, which the text has not, singly and within; the one that ended the output, too.
        ({"stop": ("<|im_start|>",)}, ["ab", "<|im_start|>c"], None, "ab", [], "stop", 1),
        ({"stop": ("b<|im_start|>c",)}, ["ab", "<|im_start|>c"], None, "a", [], "stop", 1),
        ({"stop": ("b<|im_start|>x",)}, ["ab", "<|im_start|>c"], "length", "abc", [], "length", 0),
        ({"stop": ("b<|im_start|>c",), "include": True}, ["ab", "<|im_start|>cd"], None, "abc", [], "stop", 1),
        ({"stop": ("b<|im_end|>",)}, ["ab"], "stop", "a", [], "stop", 0),
        ({"stop": ("b<|im_end|>",), "include": True}, ["ab"], "stop", "ab", [], "stop", 0),
        ({"stop": ("<|im_end|>", "bc<|im_end|>")}, ["ab"], "stop", "ab", [], "stop", 0),
        ({"stop": ("<|im_end|>",), "tools": True}, [CALL], "stop", "", ONE_CALL, "tool_calls", 0),
        ({"tools": True}, list(CALL), "stop", "", ONE_CALL, "tool_calls", 0),
        ({"tools": True}, ["I see. " + CALL + CALL], "stop", "I see. ", ONE_CALL * 2, "tool_calls", 0),
        ({"tools": True}, [CALL[: CALL.index("1")]], "length", "", [("f", '{"a": ')], "length", 0),
        ({"tools": True}, ["a < b <tool"], "stop", "a < b <tool", [], "stop", 0),
        ({}, [CALL], "stop", CALL, [], "stop", 0),
        # A second call ends the answer if calls may not be parallel.
        ({"tools": True, "parallel_tool_calls": False}, [CALL + CALL], None, "", ONE_CALL, "tool_calls", 1),
        ({"tools": True, "stop": (": 1",)}, [CALL], None, "", [("f", '{"a"')], "stop", 1),
    ],
)
def test_what_becomes_of_deltas(
    options: dict[str, Any],
    deltas: list[Any],
    reason: str | None,
    text: str,
    calls: list[tuple[str, str]],
    ends_in: str,
    cancelled: int,
) -> None:
    run = Run(**options)
    for at, delta in enumerate(deltas):
        last = reason if at == len(deltas) - 1 else None
        run.deliver(0, delta, last, stop_token_id=EOS if last == "stop" else None)
    names = [event[3] for event in run.writer.events if event[0] == "call"]
    assert [(name, run.writer.arguments(at)) for at, name in enumerate(names)] == calls
    assert run.writer.content() == text
    assert run.writer.reasons() == [ends_in]
    # As if each had come by itself: those after the end do not count.
    tokens = [token for delta in deltas for token in (token_ids(delta) if isinstance(delta, str) else delta)]
    single = Run(**options)
    for token in tokens:
        single.deliver(0, [token])
    if reason is not None:
        single.deliver(0, [], reason, stop_token_id=EOS if reason == "stop" else None)
    assert run.writer.events[-1] == single.writer.events[-1]
    assert len(run.engine.cancelled) == cancelled
    run.deliver(0, "late", "length")
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


@pytest.mark.parametrize(
    ("delta", "param"),
    [({"error": "no", "invalid": True}, "structured_outputs.grammar"), ({"error": "broken"}, None)],
)
def test_a_refusal_by_the_engine_names_the_field_of_the_grammar(delta: dict[str, Any], param: str | None) -> None:
    run = Run(2, refusable_param="structured_outputs.grammar")
    run.deliver(0, "", "error", **delta)
    assert run.writer.events[-1][1].param == param


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


@pytest.mark.parametrize("cut_at", range(1, len(CALL) + 1))
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("reason", ["length", "stop"])
def test_of_a_call_that_is_cut_or_forced_nothing_becomes_text(cut_at: int, forced: bool, reason: str) -> None:
    run = Run(tools=True, forced=forced)
    run.deliver(0, CALL[:cut_at], reason)
    assert run.writer.content() == (
        "" if forced or reason == "length" or run.sequences[0].finish_reason == "tool_calls" else CALL[:cut_at]
    )
    assert '{"a": 1}'.startswith(run.writer.arguments(0))


def test_text_beside_a_forced_call_is_dropped() -> None:
    run = Run(tools=True, forced=True)
    run.deliver(0, "I look. <tool_call> broken")
    run.deliver(0, f"{CALL} done", "stop", stop_token_id=EOS)
    assert run.writer.content() == ""
    assert (run.writer.arguments(0), run.writer.reasons()) == ('{"a": 1}', ["tool_calls"])


# --- in parts ---


@given(st.integers(2, 30), st.integers(1, 20), st.randoms(use_true_random=False))
def test_sequences_in_parts_are_submitted_once_each_and_end_as_one_answer(
    count: int, capacity: int, random: Any
) -> None:
    run = Run(count=count, capacity=capacity)
    running: list[int] = []
    known = 0
    while True:
        running += range(known, len(run.engine.requests))
        known = len(run.engine.requests)
        if not running:
            break
        assert run.ends == 0
        run.deliver(running.pop(random.randrange(len(running))), "a", "stop")
    assert [request.request_id for request in run.engine.requests] == [one.request.request_id for one in run.sequences]
    assert (run.outcome, run.ends, run.generation.usage.completion_tokens) == ("done", 1, count)
    assert sorted(event[1] for event in run.writer.events if event[0] == "finished") == list(range(count))
    assert [event[0] for event in run.writer.events].count("done") == 1
    assert (run.admission.running, run.admission.waiting) == (0, 0)


@pytest.mark.parametrize("how", ["cancel", "fail", "engine", "unsubmitted"])
@pytest.mark.parametrize("ended", [0, 1, 3])
def test_a_request_in_parts_that_ends_early_gives_everything_back(how: str, ended: int) -> None:
    run = Run(count=100, capacity=16)
    for at in range(ended):
        run.deliver(at, "a", "stop")
    submitted = len(run.engine.requests)
    assert submitted == 15 + ended
    if how == "cancel":
        run.generation.cancel()
    elif how == "fail":
        run.generation.fail(OverloadedError("The server is shutting down."))
    elif how == "engine":
        run.deliver(submitted - 1, [], "error", error="broken")
    else:
        run.engine.submit = _broken  # type: ignore[assignment, method-assign]
        run.deliver(submitted - 1, "a", "stop")
        ended += 1
    assert run.ends == 1
    assert [event[0] for event in run.writer.events].count("failed") == (how in ("fail", "engine"))
    assert (run.admission.running, run.admission.waiting) == (0, 0)
    assert not run.engine.listeners
    assert len(run.engine.requests) == submitted
    # Nothing is submitted of it for those that come.
    assert len(run.engine.cancelled) == submitted - ended - (how == "engine")


def _broken(*_: Any) -> None:
    raise ValueError("no engine")
