from __future__ import annotations

import json

import pytest

from benchmarks.clients.stats import analyse, measurement
from benchmarks.clients.target import Plan, http_target
from benchmarks.clients.traces import Trace

_PLAN = Plan(http_target("chat", "http://127.0.0.1:1/v1", model="m"), 1, 1, 1, output_tokens=3)


def make_trace(
    events_at: list[tuple[float, int]], *, tokens: int | None = 3, done: bool = True, start: float = 0
) -> Trace:
    trace = Trace(start)
    for now, count in events_at:
        trace.add(now, [b"data: {}"] * count, keep=3)
        trace.ended = now
    usage = {"usage": tokens if tokens is None else {"prompt_tokens": 7, "completion_tokens": tokens}}
    trace.tail = [b"data: " + json.dumps(usage).encode(), *([b"data: [DONE]"] if done else [])]
    return trace


def test_times_of_text_events_only() -> None:
    # role and first text together, then a text, then the last text with finish reason, usage and [DONE]
    trace = make_trace([(1.0, 2), (1.5, 1), (1.6, 4)], start=0.25)
    report = analyse([trace], _PLAN, cpu_s=0.5)
    assert not report.failures
    assert report.first_token.tolist() == [0.75]
    assert report.gaps.tolist() == pytest.approx([0.5, 0.1])
    assert (report.text_events, report.completion_tokens, report.prompt_tokens) == (3, 3, 7)


@pytest.mark.parametrize(
    ("trace", "problem"),
    [
        (make_trace([(1.0, 7)], tokens=None), "incomplete: no usage"),
        (make_trace([(1.0, 7)], tokens=2), "incomplete: 2 of 3 tokens"),
        (make_trace([(1.0, 7)], done=False), "incomplete: no [DONE]"),
        (make_trace([(1.0, 4)]), "incomplete: 0 text events for 3 tokens"),
        (make_trace([(1.0, 8)]), "incomplete: 4 text events for 3 tokens"),
        (make_trace([]), "incomplete: 0 text events for 3 tokens"),
    ],
)
def test_what_is_not_complete_has_failed(trace: Trace, problem: str) -> None:
    report = analyse([trace, make_trace([(1.0, 7)])], _PLAN, cpu_s=0)
    assert report.failures == {problem: 1}
    assert report.requests == 2
    assert report.completion_tokens == 3


def test_several_tokens_in_one_event() -> None:
    """The role beside the first text, the last text beside the finish reason: what usually stands alone does not."""
    usual = Plan(_PLAN.target, 1, 1, 1, output_tokens=8)
    delta = '{"choices":[{"index":0,"delta":{"content":" two words"},"finish_reason":"length"}]}'
    usage = '{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":8}}'
    trace = Trace(0)
    for now, event in enumerate((delta, delta, usage, "[DONE]"), start=1):
        trace.add(now, [f"data: {event}".encode()], keep=3)
    report = analyse([trace], usual, cpu_s=0)
    assert not report.failures
    assert (report.text_events, report.completion_tokens) == (2, 8)
    assert (report.first_token.tolist(), report.gaps.tolist()) == ([1.0], [1.0])
    assert measurement("p", 1, report, None).tokens_per_event == 4


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (('{"output_ids":5}',) * 3, None),
        (('{"output_ids":5}',) * 2, "incomplete: 2 of 3 tokens"),
        (('{"output_ids":5}', '{"error":"stub died"}'), "error event: stub died"),
        (('{"other":1}',), "error event: a response without output_ids"),
        ((), "incomplete: 0 of 3 tokens"),
    ],
)
def test_tokens_of_raw_models_are_their_responses(events: tuple[str, ...], problem: str | None) -> None:
    target = http_target("generate_stream", "http://h:1", triton_model="bare", dialect="ids")
    trace = Trace(0)
    for event in events:
        trace.add(1.0, [b"data: " + event.encode()], keep=3)
    report = analyse([trace], Plan(target, 1, 1, 1, output_tokens=3), cpu_s=0)
    assert report.completion_tokens == (0 if problem else 3)
    assert report.failures == ({problem: 1} if problem else {})
