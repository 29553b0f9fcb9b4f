"""From the traces of requests to numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.clients.events import Ending, PayloadReader, StreamFailure, layout_of, payload_reader, read_ending
from benchmarks.clients.target import Plan
from benchmarks.clients.traces import Trace
from benchmarks.support.spread import Seconds, percentile_ms


@dataclass
class ClientReport:
    """What one or more client processes saw."""

    requests: int
    failures: Counter[str]
    """By message."""
    prompt_tokens: int
    completion_tokens: int
    """From usage, of requests that did not fail."""
    text_events: int
    first_token: Seconds
    """From sending a request to its first text, for each request."""
    gaps: Seconds
    """From one text event to the next of the same request."""
    started: float
    ended: float
    cpu_s: float
    """CPU time of the client processes."""


def analyse(traces: Sequence[Trace], plan: Plan, cpu_s: float) -> ClientReport:
    """The report of one client process."""
    payload = payload_reader(plan.target)
    failures: Counter[str] = Counter()
    first: list[float] = []
    gaps: list[Seconds] = []
    prompt_tokens = completion_tokens = text_events = 0
    for trace in traces:
        arrivals = np.repeat(np.array(trace.times), np.array(trace.counts, dtype=np.int64))
        try:
            texts, ending = _look_into(trace, arrivals, plan, payload)
            problem = trace.failure or _problem(ending, len(texts), plan, trace.output_tokens or plan.output_tokens)
        except StreamFailure as failure:
            texts, ending = arrivals, Ending()
            problem = trace.failure or f"error event: {failure}"
        if problem:
            failures[problem] += 1
            continue
        prompt_tokens += ending.prompt_tokens or 0
        completion_tokens += ending.completion_tokens or 0
        text_events += len(texts)
        first.append(texts[0] - trace.started)
        gaps.append(np.diff(texts))
    return ClientReport(
        requests=len(traces),
        failures=failures,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        text_events=text_events,
        first_token=np.array(first),
        gaps=np.concatenate(gaps) if gaps else np.array([]),
        started=min(trace.started for trace in traces),
        ended=max(trace.ended for trace in traces),
        cpu_s=cpu_s,
    )


def _look_into(trace: Trace, arrivals: Seconds, plan: Plan, payload: PayloadReader) -> tuple[Seconds, Ending]:
    """When texts came, and what the stream says at its end.

    Raises:
        StreamFailure: an event reports an error, or is not what it should be.
    """
    if plan.target.dialect != "openai":
        # A token for each response, by contract and without usage: what is counted is held against the wanted number.
        for event in (trace.head, *trace.tail) if trace.head else ():
            payload(event)
        return arrivals, Ending(completion_tokens=len(arrivals))
    ending = read_ending(trace.tail, payload)
    layout = layout_of(trace.head, trace.tail, payload, plan.target.layout)
    return arrivals[layout.lead : max(layout.lead, len(arrivals) - layout.trail)], ending


def _problem(ending: Ending, text_events: int, plan: Plan, wanted: int) -> str:
    """Why a stream is not complete, or an empty string."""
    if plan.target.api in ("chat", "completions") and not ending.done:
        return "incomplete: no [DONE]"
    if ending.completion_tokens is None:
        return "incomplete: no usage"
    if ending.completion_tokens != wanted:
        return f"incomplete: {ending.completion_tokens} of {wanted} tokens"
    if not 0 < text_events <= ending.completion_tokens:
        return f"incomplete: {text_events} text events for {ending.completion_tokens} tokens"
    return ""


@dataclass(frozen=True)
class Measurement:
    """One target at one concurrency, once."""

    path: str
    concurrency: int
    requests: int
    failed: int
    failures: dict[str, int]
    wall_s: float
    """From the first request sent to the last stream ended."""
    prompt_tokens: float
    """Mean of a request."""
    tokens: int
    text_events: int
    first_token_ms_p50: float
    first_token_ms_p99: float
    gap_ms_p50: float
    """Between the text events of a request: the inter-token latency."""
    gap_ms_p99: float
    gap_ms_mean: float
    tokens_per_s: float
    client_cpu_s: float
    server_cpu_s: float | None
    """Of the whole process tree; None if the server is not on this machine."""
    server_cpu_by_process: dict[str, float] = field(default_factory=dict)
    """Seconds by process: `tritonserver`, and the models' own processes by model."""
    machine_cpu_s: float | None = None
    """Of everything on this machine; None if the server is not on it."""

    @property
    def server_cpu_per_1k(self) -> float | None:
        """Server CPU seconds per 1,000 tokens, which is milliseconds a token."""
        return None if self.server_cpu_s is None or not self.tokens else self.server_cpu_s / self.tokens * 1000

    @property
    def client_cpu_per_1k(self) -> float:
        """Client CPU seconds per 1,000 tokens."""
        return self.client_cpu_s / self.tokens * 1000 if self.tokens else float("nan")

    @property
    def others_load(self) -> float | None:
        """Cores that were busy with anything but this server and its clients."""
        if self.machine_cpu_s is None or self.server_cpu_s is None or not self.wall_s:
            return None
        return max(0.0, self.machine_cpu_s - self.server_cpu_s - self.client_cpu_s) / self.wall_s

    @property
    def tokens_per_event(self) -> float:
        """1 if every token came in an event of its own; more where some had no text or came together."""
        return self.tokens / self.text_events if self.text_events else float("nan")

    @property
    def events_per_s(self) -> float:
        """Text events a second: what the transport carries, where `tokens_per_s` is what clients get."""
        return self.text_events / self.wall_s if self.wall_s else float("nan")


def nothing_measured(path: str, concurrency: int, reason: str) -> Measurement:
    """A measurement whose requests, one for each stream, have all failed for `reason`."""
    nothing = np.array([])
    failures = Counter({reason: concurrency})
    report = ClientReport(concurrency, failures, 0, 0, 0, nothing, nothing, 0.0, 0.0, 0.0)
    return measurement(path, concurrency, report, None)


def measurement(
    path: str,
    concurrency: int,
    report: ClientReport,
    server_cpu: dict[str, float] | None,
    machine_cpu_s: float | None = None,
) -> Measurement:
    """The numbers of `report`."""
    wall = report.ended - report.started
    good = len(report.first_token)
    return Measurement(
        path=path,
        concurrency=concurrency,
        requests=report.requests,
        failed=report.failures.total(),
        failures=dict(report.failures),
        wall_s=wall,
        prompt_tokens=report.prompt_tokens / good if good else float("nan"),
        tokens=report.completion_tokens,
        text_events=report.text_events,
        first_token_ms_p50=percentile_ms(report.first_token, 50),
        first_token_ms_p99=percentile_ms(report.first_token, 99),
        gap_ms_p50=percentile_ms(report.gaps, 50),
        gap_ms_p99=percentile_ms(report.gaps, 99),
        gap_ms_mean=float(report.gaps.mean()) * 1000 if len(report.gaps) else float("nan"),
        tokens_per_s=report.completion_tokens / wall if wall > 0 else float("nan"),
        client_cpu_s=report.cpu_s,
        server_cpu_s=None if server_cpu is None else sum(server_cpu.values()),
        server_cpu_by_process=server_cpu or {},
        machine_cpu_s=machine_cpu_s,
    )
