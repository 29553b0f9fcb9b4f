"""Export of the metrics to Triton's own metrics port, by a thread that carries over once a second what has changed.

An update takes 0.05 to 0.1 ms, most of it in the server, so nothing is sent per token, per request or from the event
loop: a counter is incremented by its difference, and a gauge is set if it has changed. A histogram of Triton's takes
one value at a time, so ours are shown as what they are made of, counters named `_bucket`, `_sum` and `_count`, which
PromQL reads alike; they go out every five seconds, as each value changes all buckets above it. Counters come from each
instance, and Triton adds them up; what all instances tell alike comes from one of them.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from prometheus_client.core import Metric

from openai_bls.pipeline.metrics.directory import Leadership
from openai_bls.pipeline.metrics.metrics import Metrics

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0  # between two exports
_HISTOGRAMS_EVERY = 5
"""Exports from one with histograms to the next."""


class MetricsPort(Protocol):
    """Triton's metrics port; see `pb_utils.MetricsPort`."""

    def metric(self, kind: str, name: str, documentation: str, labels: Mapping[str, str]) -> Any:
        """A metric with `increment` or `set`."""

    def close(self) -> None:
        """Remove the families."""


_Key = tuple[str, frozenset[tuple[str, str]]]


class MetricsExporter:
    """Copy of one instance's metrics on Triton's metrics port.

    Args:
        metrics: metrics of the instance.
        port: metrics port of the server.
    """

    def __init__(self, metrics: Metrics, port: MetricsPort) -> None:
        self._metrics = metrics
        self._port = port
        self._leadership = Leadership()
        self._series: dict[_Key, _Series] = {}
        self._shared: set[_Key] = set()
        """Keys of `_series` that this instance shows for all instances."""
        self._exports = 0
        self._warned: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-exporter", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and take this instance's metrics from the port."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._series.clear()
        self._port.close()
        self._leadership.give_up()

    def export(self) -> None:
        """Carry over what has changed; not from two threads at once."""
        for family in self._metrics.counters():
            if family.type != "histogram" or not self._exports % _HISTOGRAMS_EVERY:
                self._carry(family)
        self._exports += 1
        if self._leadership.have():
            told = {key for family in self._metrics.shared() for key in self._carry(family, shared=True)}
            # Of a model that has been unloaded.
            for key in self._shared - told:
                if (series := self._series.pop(key, None)) is not None:
                    series.forget()
            self._shared = told

    def _run(self) -> None:
        while not self._closing.wait(_INTERVAL_S):
            try:
                self.export()
            except Exception as error:
                self._warn("the metrics", error)

    def _carry(self, family: Metric, *, shared: bool = False) -> list[_Key]:
        """Bring a family up to date; the keys of its series.

        Args:
            family: family with its values.
            shared: whether counts that the port already shows are part of the values: a leader whose process was killed
                has left them.
        """
        keys = []
        kind = "gauge" if family.type == "gauge" else "counter"
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            keys.append(key)
            series = self._series.get(key)
            if series is not None and kind == "counter" and sample.value < series.value:
                # Of an engine that has been loaded again: another one takes its place, from 0, once this one has gone.
                del self._series[key], series
            try:
                series = self._of(key, kind, family.documentation, sample.labels)
                if shared and series.is_new and series.metric.value() <= sample.value:
                    series.value = series.metric.value()
                series.carry(sample.value)
            except Exception as error:
                self._warn(sample.name, error)
        return keys

    def _of(self, key: _Key, kind: str, documentation: str, labels: Mapping[str, str]) -> _Series:
        series = self._series.get(key)
        if series is None:
            metric = self._port.metric(kind, key[0], documentation, labels)
            series = self._series[key] = _Series(metric, kind)
        return series

    def _warn(self, name: str, error: Exception) -> None:
        """Once per name; what could not be carried over is tried again a second later."""
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("Triton's metrics port does not show %s: %s", name, error)


class _Series:
    """Metric on the port, and the value that it has there by this instance."""

    def __init__(self, metric: Any, kind: str) -> None:
        self.metric = metric
        self._kind = kind
        self.value = 0.0
        self.is_new = True

    def carry(self, value: float) -> None:
        """Show `value`."""
        if self._kind == "gauge" and (self.is_new or value != self.value):
            self.metric.set(value)
        elif self._kind == "counter" and value != self.value:
            self.metric.increment(value - self.value)
        self.value = value
        self.is_new = False

    def forget(self) -> None:
        """Tell that there is no value any more: the port keeps what it once had until the family ends."""
        if self._kind == "gauge":
            self.metric.set(math.nan)
