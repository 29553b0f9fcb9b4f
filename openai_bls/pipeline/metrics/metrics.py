"""Prometheus metrics: counts and times of requests, taken when a request ends and never per token.

Names and meanings are near vLLM's, so that its dashboards need little change. Requests are summed over all
`openai_bls` instances of the server (`metrics_directory`); the engines' load is the same from each. What is declared
here is shown on /v1's port and, by `triton_models.openai_bls.metrics_exporter`, on Triton's.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from openai_bls.core.errors import ApiError, RateLimitError, RequestDeadlineError
from openai_bls.core.request_record import RequestRecord
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.metrics import engine_load
from openai_bls.pipeline.metrics.directory import VARIABLE, ended_instances
from openai_bls.pipeline.models.readiness import Readiness
from openai_bls.pipeline.models.registry import Models

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "openai_bls_"
_WAITING = _PREFIX + "requests_waiting"
_LABELS = ("model", "endpoint")
_KEY_LABEL = "key"
_PAGE_INTERVAL_S = 0.05
"""Seconds from one page to the next."""
_OTHER = "other"


@dataclass(frozen=True)
class HistogramFamily:
    """Declaration of a histogram."""

    name: str
    documentation: str
    buckets: tuple[float, ...]
    """Upper bounds, in seconds."""
    labels: tuple[str, ...] = _LABELS

    def register(self, registry: CollectorRegistry) -> Histogram:
        """A histogram of prometheus_client."""
        return Histogram(self.name, self.documentation, self.labels, buckets=self.buckets, registry=registry)


_FIRST_TOKEN = HistogramFamily(
    _PREFIX + "time_to_first_token_seconds",
    "From the request's arrival to its first token.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60),
)
_PER_TOKEN = HistogramFamily(
    _PREFIX + "time_per_output_token_seconds",
    "Mean time between the tokens of a request, after the first.",
    (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
)
_WHOLE = HistogramFamily(
    _PREFIX + "e2e_request_latency_seconds",
    "From the request's arrival to its last token, of requests that were not cancelled and did not fail.",
    (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0),
)
_QUEUE = HistogramFamily(
    _PREFIX + "request_queue_time_seconds",
    "Wait for a place in the engine's batch: for its turn, and in the engine as far as that tells it.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
)
_GUARD_CALL = HistogramFamily(
    _PREFIX + "guard_call_seconds",
    "Calls of a guard, before requests or after answers. The outcome is passed, changed, refused, timeout, failed, or "
    "cancelled (the client has gone).",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    ("hook", "outcome"),
)
_EVENT_LOOP_STALL = HistogramFamily(
    _PREFIX + "event_loop_stall_seconds",
    "Stalls of the event loop of 10 ms or more: nothing of any request moves meanwhile.",
    (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    (),
)
_HISTOGRAMS = (_FIRST_TOKEN, _PER_TOKEN, _WHOLE, _QUEUE, _GUARD_CALL, _EVENT_LOOP_STALL)


# When a series was created says nothing here.
disable_created_metrics()  # type: ignore[no-untyped-call]


class ServiceLoad(Protocol):
    """Source of the engines' load, read at each scrape."""

    models: Models
    readiness: Readiness
    settings: OpenAiBlsSettings


class Metrics(Collector):
    """Metrics of one `openai_bls` instance, in files that the others read if `metrics_directory.share` was called.

    Args:
        service: service whose engines' load is reported.
    """

    def __init__(self, service: ServiceLoad) -> None:
        registry = self._registry = CollectorRegistry()
        # Keys have names in the file alone.
        self._has_keys = bool(service.settings.api_keys_file)
        counted = (*_LABELS, _KEY_LABEL) if self._has_keys else _LABELS
        self._requests = Counter(
            _PREFIX + "requests",
            "Requests that have ended. The outcome is done, cancelled, or the HTTP status of an error.",
            (*counted, "outcome"),
            registry=registry,
        )
        self._finished = Counter(
            _PREFIX + "finished_sequences",
            "Answers (n of a request count as n) that have ended, by finish_reason.",
            (*_LABELS, "finish_reason"),
            registry=registry,
        )
        self._tokens = {
            kind: Counter(_PREFIX + kind, documentation, counted, registry=registry)
            for kind, documentation in (
                ("prompt_tokens", "Tokens of prompts."),
                ("cached_prompt_tokens", "Tokens of prompts that the engine had in its cache."),
                ("generation_tokens", "Tokens generated."),
                ("reasoning_tokens", "Tokens generated that were reasoning."),
            )
        }
        self._histograms = {family: family.register(registry) for family in _HISTOGRAMS}
        self._in_progress = Gauge(
            _PREFIX + "requests_in_progress",
            "Requests that are being prepared or generated.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._waiting = Gauge(
            _WAITING,
            "Requests that wait for an engine: in the queue of openai_bls, and in the engine for a place in its batch.",
            ("model",),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._waiting_tokens = Gauge(
            _PREFIX + "prompt_tokens_waiting",
            "Prompt tokens of the requests in the queue of openai_bls.",
            ("model",),
            registry=registry,
            multiprocess_mode="livesum",
        )
        by_key = (_KEY_LABEL,) if self._has_keys else ()
        self._refusals = Counter(
            _PREFIX + "requests_refused",
            "Requests answered 429. The reason is in_progress, queue_full or too_late (would miss its deadline) for "
            "the server's limits, concurrent_requests, requests_per_minute or tokens_per_minute for the API key's.",
            ("reason", *by_key),
            registry=registry,
        )
        self._deadlines_missed = Counter(
            _PREFIX + "deadlines_missed",
            "Requests whose timeout has passed: while they waited for the engine, or while they were answered.",
            ("stage", *by_key),
            registry=registry,
        )
        self._series: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        """Counters by their labels: the library's own look-up costs more than what it finds."""
        self._observed: dict[tuple[str, tuple[str, ...]], Histogram] = {}
        """Histograms by name and labels."""
        self._page: asyncio.Future[bytes] | None = None
        """Page that later scrapes share."""
        self._page_at = -math.inf
        """`time.monotonic()` of the newest page."""
        self._service = service
        self._counted: WeakSet[ApiError] = WeakSet()

    def set_in_progress(self, count: int) -> None:
        """Set the number of requests in progress."""
        self._in_progress.set(count)

    def queue_of(self, model: str) -> Callable[[int, int], None]:
        """Function that changes what the queue for an engine has: by a number of requests, and of prompt tokens.

        Args:
            model: name of the engine's model.
        """
        requests, prompt_tokens = self._waiting.labels(model), self._waiting_tokens.labels(model)

        def change(by_requests: int, by_tokens: int) -> None:
            requests.inc(by_requests)
            prompt_tokens.inc(by_tokens)

        return change

    def guard_called(self, hook: str, outcome: str, seconds: float) -> None:
        """Count a call of a guard."""
        self._observe(_GUARD_CALL, (hook, outcome), seconds)

    def event_loop_stalled(self, seconds: float) -> None:
        """Count a stall of the event loop."""
        self._observe(_EVENT_LOOP_STALL, (), seconds)

    def ended(self, record: RequestRecord) -> None:
        """Count an admitted request that has ended."""
        labels = (record.model, record.endpoint)
        outcome = record.outcome
        if isinstance(outcome, ApiError):
            # It comes again as the answer's error.
            self._counted.add(outcome)
            self._count_overload(outcome, record.key)
            outcome_label = str(outcome.status)
        else:
            outcome_label = outcome
        counted = self._counted_labels(labels, record.key)
        self._count(self._requests, (*counted, outcome_label), 1)
        for reason in record.finish_reasons:
            self._count(self._finished, (*labels, reason), 1)
        usage = record.usage
        tokens = self._tokens
        self._count(tokens["prompt_tokens"], counted, usage.prompt_tokens)
        self._count(tokens["cached_prompt_tokens"], counted, usage.prompt_tokens_details.cached_tokens)
        self._count(tokens["generation_tokens"], counted, usage.completion_tokens)
        self._count(tokens["reasoning_tokens"], counted, usage.completion_tokens_details.reasoning_tokens)
        if record.first_token_at is not None:
            self._observe(_FIRST_TOKEN, labels, record.first_token_at - record.began_at)
        if record.queue_s is not None:
            self._observe(_QUEUE, labels, record.queue_s)
        if outcome == "done":
            self._observe(_WHOLE, labels, record.ended_at - record.began_at)
            self._observe_pace(record)

    def refused(self, endpoint: str, error: ApiError, key: str = "") -> None:
        """Count a request that was answered with an error.

        Args:
            endpoint: name of the endpoint; empty if the request named none.
            error: error of the answer; one that ended an admitted request is counted already.
            key: name of the API key that it came with.
        """
        if error in self._counted:
            return
        self._count_overload(error, key)
        counted = self._counted_labels(("", endpoint or _OTHER), key)
        self._requests.labels(*counted, str(error.status)).inc()

    async def scrape(self) -> bytes:
        """The metrics of all instances together, in Prometheus's text format.

        Gateways scrape 20 times a second, each of their replicas: scrapes that come within `_PAGE_INTERVAL_S` of a page
        share the next one. None gets a page that is older than itself.
        """
        if self._page is None:
            self._page = asyncio.ensure_future(self._next_page())
        return await asyncio.shield(self._page)

    async def _next_page(self) -> bytes:
        await asyncio.sleep(max(0.0, self._page_at + _PAGE_INTERVAL_S - time.monotonic()))
        self._page, self._page_at = None, time.monotonic()
        await self._service.readiness.check()
        # Thousands of series take a while to be read and written; the event loop goes on with tokens.
        return await asyncio.to_thread(generate_latest, self)

    def collect(self) -> Iterator[Metric]:
        """All families, counted ones as sums over the instances. From any thread."""
        families = {family.name: family for family in self._registry.collect()}
        yield from self._complete(families | {family.name: family for family in self._summed("*.db")})

    def counters(self) -> Iterator[Metric]:
        """Counters and histograms of this instance alone. From any thread."""
        return (family for family in self._registry.collect() if family.type in ("counter", "histogram"))

    def shared(self) -> Iterator[Metric]:
        """Families that each instance tells alike: gauges, summed over the instances, and the engines' load. From any
        thread."""
        families = {family.name: family for family in self._registry.collect() if family.type == "gauge"}
        yield from self._complete(families | {family.name: family for family in self._summed("gauge_*.db")})

    def _complete(self, families: Mapping[str, Metric]) -> Iterator[Metric]:
        """Families of the requests and of the engines' load."""
        queued = {sample.labels["model"]: sample.value for sample in families[_WAITING].samples}
        service = self._service
        loads = engine_load.loads(service.models)
        yield from (family for name, family in families.items() if name != _WAITING)
        waiting = engine_load.waiting(loads, queued)
        yield engine_load.gauge(_WAITING, families[_WAITING].documentation, waiting)
        yield from engine_load.states(service.models, service.readiness)
        yield from engine_load.families(loads)
        yield from engine_load.nvidia_families(loads, waiting)

    def _summed(self, pattern: str) -> Iterable[Metric]:
        """Families in the files of all instances that match `pattern`, as sums; none if they do not share."""
        directory = os.environ.get(VARIABLE)
        if directory is None:
            return ()
        for pid in ended_instances(directory):
            with contextlib.suppress(FileNotFoundError):
                mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]
        files = [str(file) for file in Path(directory).glob(pattern)]
        summed: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return summed

    def _counted_labels(self, labels: tuple[str, ...], key: str) -> tuple[str, ...]:
        return (*labels, key) if self._has_keys else labels

    def _count_overload(self, error: ApiError, key: str) -> None:
        """Count a request that was refused for the load, or has become too late."""
        if isinstance(error, RateLimitError):
            self._refusals.labels(*self._counted_labels((error.reason,), key)).inc()
        elif isinstance(error, RequestDeadlineError):
            stage = "waiting" if error.waited else "generating"
            self._deadlines_missed.labels(*self._counted_labels((stage,), key)).inc()

    def _observe_pace(self, record: RequestRecord) -> None:
        sequences = len(record.finish_reasons)
        tokens = record.usage.completion_tokens
        if record.first_token_at is not None and tokens > sequences > 0:
            # They run side by side.
            gaps = (tokens - sequences) / sequences
            pace = (record.ended_at - record.first_token_at) / gaps
            self._observe(_PER_TOKEN, (record.model, record.endpoint), pace)

    def _count(self, counter: Counter, labels: tuple[str, ...], amount: int) -> None:
        series = self._series.get((counter, labels))
        if series is None:
            # From now on it is shown, as 0 too.
            series = self._series[counter, labels] = counter.labels(*labels)
        if amount:
            series.inc(amount)

    def _observe(self, family: HistogramFamily, labels: tuple[str, ...], value: float) -> None:
        series = self._observed.get((family.name, labels))
        if series is None:
            histogram = self._histograms[family]
            series = self._observed[family.name, labels] = histogram.labels(*labels) if labels else histogram
        series.observe(value)
