"""Count of the requests for LoRA adapters, summed over the `openai_bls` instances: which adapters have requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric

NAME = "openai_bls_adapter_requests"
"""Name of the gauge, which is shown in another form only."""

_State = Literal["waiting", "running"]


class AdapterRequests(NamedTuple):
    """Adapters of one engine that have requests."""

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()


class AdapterRequest:
    """One request for an adapter: in the queue of `openai_bls`, then in the engine.

    Args:
        count: changes the number of the adapter's requests in a state.
    """

    __slots__ = ("_count", "_state")

    def __init__(self, count: Callable[[_State, int], None]) -> None:
        self._count = count
        self._state: _State | None = None

    def waits(self) -> None:
        """Note that the request waits for the engine."""
        self._enter("waiting")

    def runs(self) -> None:
        """The engine has it."""
        self._enter("running")

    def ended(self) -> None:
        """Note the end of the request, in the queue or in the engine."""
        self._enter(None)

    def _enter(self, state: _State | None) -> None:
        if self._state is not None:
            self._count(self._state, -1)
        if state is not None:
            self._count(state, 1)
        self._state = state


class AdapterGauge:
    """Gauge of the requests by adapter and state.

    Args:
        registry: registry of the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(
            NAME,
            "Requests for adapters that wait in the queue of openai_bls, or that the engine has.",
            ("model", "adapter", "state"),
            registry=registry,
            multiprocess_mode="livesum",
        )

    def request(self, model: str, adapter: str) -> AdapterRequest:
        """A request that is to be counted.

        Args:
            model: name of the engine's model.
            adapter: name of the adapter.
        """

        def count(state: _State, change: int) -> None:
            self._gauge.labels(model, adapter, state).inc(change)

        return AdapterRequest(count)


def by_model(family: Metric | None) -> dict[str, AdapterRequests]:
    """Adapters that have requests, by name of the engine's model.

    Args:
        family: family of the gauge; None if nothing is counted.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for sample in family.samples if family is not None else ():
        if sample.value > 0:
            states = found.setdefault(sample.labels["model"], {"running": set(), "waiting": set()})
            states[sample.labels["state"]].add(sample.labels["adapter"])
    return {
        model: AdapterRequests(frozenset(states["running"]), frozenset(states["waiting"]))
        for model, states in found.items()
    }
