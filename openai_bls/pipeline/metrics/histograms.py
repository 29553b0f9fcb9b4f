"""Histograms of the metrics: their declarations, and observation of many values at once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram

PREFIX = "openai_bls_"
"""Prefix of all names."""
LABELS = ("model", "endpoint")


class BulkHistogram(Histogram):
    """Histogram that takes many values for one update of each bucket."""

    def observe_all(self, values: Sequence[float]) -> None:
        """Observe `values`."""
        self._sum.inc(sum(values))
        for bucket, count in Counter(bisect_left(self._upper_bounds, value) for value in values).items():
            self._buckets[bucket].inc(count)


@dataclass(frozen=True)
class HistogramFamily:
    """Declaration of a histogram."""

    name: str
    documentation: str
    buckets: tuple[float, ...]
    """Upper bounds, in seconds."""
    labels: tuple[str, ...] = LABELS

    def register(self, registry: CollectorRegistry) -> BulkHistogram:
        """A histogram of this family."""
        return BulkHistogram(self.name, self.documentation, self.labels, buckets=self.buckets, registry=registry)


FIRST_TOKEN = HistogramFamily(
    PREFIX + "time_to_first_token_seconds",
    "From the request's arrival to its first token.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60),
)
PER_TOKEN = HistogramFamily(
    PREFIX + "time_per_output_token_seconds",
    "Mean time between the tokens of a request, after the first.",
    (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
)
WHOLE = HistogramFamily(
    PREFIX + "e2e_request_latency_seconds",
    "From the request's arrival to its last token, of requests that were not cancelled and did not fail.",
    (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0),
)
QUEUE = HistogramFamily(
    PREFIX + "request_queue_time_seconds",
    "Wait for a place in the engine's batch: for its turn, and in the engine as far as that tells it.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
)
GUARD_CALL = HistogramFamily(
    PREFIX + "guard_call_seconds",
    "Calls of a guard, before requests or after answers. The outcome is passed, changed, refused, timeout, failed, or "
    "cancelled (the client has gone).",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    ("hook", "outcome"),
)
EVENT_LOOP_STALL = HistogramFamily(
    PREFIX + "event_loop_stall_seconds",
    "Stalls of the event loop of 10 ms or more: nothing of any request moves meanwhile.",
    (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    (),
)
HISTOGRAMS = (FIRST_TOKEN, PER_TOKEN, WHOLE, QUEUE, GUARD_CALL, EVENT_LOOP_STALL)
