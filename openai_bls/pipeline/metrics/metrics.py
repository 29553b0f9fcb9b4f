"""Prometheus metrics: counts and times of requests, taken when a request ends, of many together, and never per token.

Names and meanings are near vLLM's, so that its dashboards need little change. Requests are summed over all
`openai_bls` instances of the server (`metrics_directory`); the engines' load is the same from each. What is declared
here is shown on /v1's port and, by `triton_models.openai_bls.metrics_exporter`, on Triton's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from openai_bls.core.errors import ApiError, RateLimitError, RequestDeadlineError
from openai_bls.core.request_record import RequestRecord
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.metrics import adapters, engine_load, gateways, histograms
from openai_bls.pipeline.metrics.directory import VARIABLE, ended_instances
from openai_bls.pipeline.metrics.histograms import LABELS, PREFIX, BulkHistogram, HistogramFamily
from openai_bls.pipeline.models.readiness import Readiness
from openai_bls.pipeline.models.registry import Models

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_WAITING = PREFIX + "requests_waiting"
_KEY_LABEL = "key"
_COUNT_INTERVAL_S = 0.02
"""Seconds from a request's end until it is counted, with all others that have ended by then: an update of the files
costs a tenth of what a short request does."""
_PAGE_INTERVAL_S = 0.05
"""Seconds from a scrape until its page is made: longer than every instance needs to count what had ended before."""
_OTHER = "other"


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
        counted = (*LABELS, _KEY_LABEL) if self._has_keys else LABELS
        self._requests = Counter(
            PREFIX + "requests",
            "Requests that have ended. The outcome is done, cancelled, or the HTTP status of an error.",
            (*counted, "outcome"),
            registry=registry,
        )
        self._finished = Counter(
            PREFIX + "finished_sequences",
            "Answers (n of a request count as n) that have ended, by finish_reason.",
            (*LABELS, "finish_reason"),
            registry=registry,
        )
        self._tokens = {
            kind: Counter(PREFIX + kind, documentation, counted, registry=registry)
            for kind, documentation in (
                ("prompt_tokens", "Tokens of prompts."),
                ("cached_prompt_tokens", "Tokens of prompts that the engine had in its cache."),
                ("generation_tokens", "Tokens generated."),
                ("reasoning_tokens", "Tokens generated that were reasoning."),
            )
        }
        self._histograms = {family: family.register(registry) for family in histograms.HISTOGRAMS}
        gauge = functools.partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self._in_progress = gauge(PREFIX + "requests_in_progress", "Requests that are being prepared or generated.")
        self._waiting = gauge(
            _WAITING,
            "Requests that wait for an engine: in the queue of openai_bls, and in the engine for a place in its batch.",
            ("model",),
        )
        self._waiting_tokens = gauge(
            PREFIX + "prompt_tokens_waiting",
            "Prompt tokens of the requests in the queue of openai_bls.",
            ("model",),
        )
        by_key = (_KEY_LABEL,) if self._has_keys else ()
        self._refusals = Counter(
            PREFIX + "requests_refused",
            "Requests answered 429. The reason is in_progress, queue_full or too_late (would miss its deadline) for "
            "the server's limits, concurrent_requests, requests_per_minute or tokens_per_minute for the API key's.",
            ("reason", *by_key),
            registry=registry,
        )
        self._deadlines_missed = Counter(
            PREFIX + "deadlines_missed",
            "Requests whose timeout has passed: while they waited for the engine, or while they were answered.",
            ("stage", *by_key),
            registry=registry,
        )
        style = service.settings.gateway_metrics
        self._nvidia_names, self._vllm_names = style in ("nvidia", "both"), style in ("vllm", "both")
        self._adapters = adapters.AdapterGauge(registry) if self._vllm_names else None
        self._series: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        """Counters by their labels: the library's own look-up costs more than what it finds."""
        self._observed: dict[tuple[str, tuple[str, ...]], BulkHistogram] = {}
        """Histograms by name and labels."""
        self._page: asyncio.Future[bytes] | None = None
        """Page that later scrapes share."""
        self._ended: list[RequestRecord] = []
        """Requests that are still to be counted."""
        self._requests_now = 0
        self._flush_scheduled = False
        self._service = service
        self._counted: WeakSet[ApiError] = WeakSet()

    def set_in_progress(self, count: int) -> None:
        """Set the number of requests in progress, with the next `flush`."""
        self._requests_now = count
        self._schedule_flush()

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

    def adapter_request(self, model: str, adapter: str | None) -> adapters.AdapterRequest | None:
        """A request for an adapter, to be counted; None if it names none, or nothing shows the count.

        Args:
            model: name of the engine's model.
            adapter: name of the adapter.
        """
        if adapter is None or self._adapters is None:
            return None
        return self._adapters.request(model, adapter)

    def guard_called(self, hook: str, outcome: str, seconds: float) -> None:
        """Count a call of a guard."""
        self._observe(histograms.GUARD_CALL, (hook, outcome), seconds)

    def event_loop_stalled(self, seconds: float) -> None:
        """Count a stall of the event loop."""
        self._observe(histograms.EVENT_LOOP_STALL, (), seconds)

    def ended(self, record: RequestRecord) -> None:
        """Count an admitted request that has ended, with the next `flush`."""
        if isinstance(record.outcome, ApiError):
            # It comes again as the answer's error.
            self._counted.add(record.outcome)
        self._ended.append(record)
        self._schedule_flush()

    def flush(self) -> None:
        """Bring the counts up to date."""
        self._flush_scheduled = False
        self._in_progress.set(self._requests_now)
        ended, self._ended = self._ended, []
        self.count(*ended)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_later(_COUNT_INTERVAL_S, self.flush)

    def count(self, *records: RequestRecord) -> None:
        """Count admitted requests that have ended, now."""
        alike: dict[tuple[str, str, str, str], list[RequestRecord]] = {}
        for record in records:
            outcome = record.outcome
            if isinstance(outcome, ApiError):
                self._counted.add(outcome)
                self._count_overload(outcome, record.key)
            label = str(outcome.status) if isinstance(outcome, ApiError) else outcome
            alike.setdefault((record.model, record.endpoint, record.key, label), []).append(record)
        for (model, endpoint, key, label), group in alike.items():
            self._count_alike((model, endpoint), key, label, group)

    def _count_alike(self, labels: tuple[str, str], key: str, outcome: str, records: Sequence[RequestRecord]) -> None:
        """Count requests with the same labels."""
        counted = self._counted_labels(labels, key)
        self._count(self._requests, (*counted, outcome), len(records))
        for reason, count in Tally(reason for record in records for reason in record.finish_reasons).items():
            self._count(self._finished, (*labels, reason), count)
        usages, tokens = [record.usage for record in records], self._tokens
        cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
        reasoning = sum(usage.completion_tokens_details.reasoning_tokens for usage in usages)
        self._count(tokens["prompt_tokens"], counted, sum(usage.prompt_tokens for usage in usages))
        self._count(tokens["cached_prompt_tokens"], counted, cached)
        self._count(tokens["generation_tokens"], counted, sum(usage.completion_tokens for usage in usages))
        self._count(tokens["reasoning_tokens"], counted, reasoning)
        first = [r.first_token_at - r.began_at for r in records if r.first_token_at is not None]
        self._observe(histograms.FIRST_TOKEN, labels, *first)
        self._observe(histograms.QUEUE, labels, *(r.queue_s for r in records if r.queue_s is not None))
        if outcome == "done":
            self._observe(histograms.WHOLE, labels, *(record.ended_at - record.began_at for record in records))
            self._observe(histograms.PER_TOKEN, labels, *(p for p in map(_pace_s, records) if p is not None))

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
        await asyncio.sleep(_PAGE_INTERVAL_S)
        self._page = None
        self.flush()
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
        thread.

        For a page that is kept, not made anew: one whose series come and go is left out.
        """
        families = {family.name: family for family in self._registry.collect() if family.type == "gauge"}
        told = self._complete(families | {family.name: family for family in self._summed("gauge_*.db")})
        yield from (family for family in told if family.name != gateways.LORA)

    def _complete(self, families: Mapping[str, Metric]) -> Iterator[Metric]:
        """Families of the requests and of the engines' load."""
        queued = {sample.labels["model"]: sample.value for sample in families[_WAITING].samples}
        service = self._service
        loads = engine_load.loads(service.models)
        yield from (family for name, family in families.items() if name not in (_WAITING, adapters.NAME))
        waiting = engine_load.waiting(loads, queued)
        yield engine_load.gauge(_WAITING, families[_WAITING].documentation, waiting)
        yield from engine_load.states(service.models, service.readiness)
        yield from engine_load.families(loads)
        if self._nvidia_names:
            yield from gateways.nvidia_families(loads, waiting)
        if self._vllm_names:
            yield from gateways.vllm_families(loads, waiting, adapters.by_model(families.get(adapters.NAME)))

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

    def _count(self, counter: Counter, labels: tuple[str, ...], amount: int) -> None:
        series = self._series.get((counter, labels))
        if series is None:
            # From now on it is shown, as 0 too.
            series = self._series[counter, labels] = counter.labels(*labels)
        if amount:
            series.inc(amount)

    def _observe(self, family: HistogramFamily, labels: tuple[str, ...], *values: float) -> None:
        if not values:
            return
        series = self._observed.get((family.name, labels))
        if series is None:
            histogram = self._histograms[family]
            series = self._observed[family.name, labels] = histogram.labels(*labels) if labels else histogram
        series.observe_all(values)


def _pace_s(record: RequestRecord) -> float | None:
    """Mean seconds between the tokens of a sequence of a request that is done; None if none has two."""
    sequences, tokens = len(record.finish_reasons), record.usage.completion_tokens
    if record.first_token_at is None or not tokens > sequences > 0:
        return None
    # They run side by side.
    return (record.ended_at - record.first_token_at) * sequences / (tokens - sequences)
