from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import EngineStats
from openai_bls.pipeline.metrics import directory as metrics_directory
from openai_bls.triton_models.openai_bls.metrics_exporter import MetricsExporter
from tests.unit.core_support import Bench
from tests.unit.pipeline.metrics.metrics_support import CHAT, line, record, series


class Port:
    """Triton's metrics port: a metric is gone when it is let go, unless a process was killed."""

    def __init__(self, left: dict[str, float] | None = None) -> None:
        self.values: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        """Last values of all gauges."""
        self.left = left or {}
        self.updates = 0
        self.closed = False

    def metric(self, kind: str, name: str, documentation: str, labels: Mapping[str, str]) -> PortMetric:
        assert documentation
        assert not self.closed
        return PortMetric(self, kind, series(name, dict(labels)))

    def close(self) -> None:
        assert self.values == {}
        self.closed = True


class PortMetric:
    def __init__(self, port: Port, kind: str, key: str) -> None:
        self.port, self.kind, self.key = port, kind, key
        assert key not in port.values
        port.values[key] = port.left.get(key, 0.0)

    def __del__(self) -> None:
        del self.port.values[self.key]

    def value(self) -> float:
        return self.port.values[self.key]

    def increment(self, value: float) -> None:
        assert self.kind == "counter"
        assert value > 0
        self.port.updates += 1
        self.port.values[self.key] += value

    def set(self, value: float) -> None:
        assert self.kind == "gauge"
        self.port.updates += 1
        self.port.values[self.key] = self.port.kept[self.key] = value


def test_only_what_has_changed_is_sent() -> None:
    bench, port = Bench(), Port()
    metrics = bench.service.metrics
    exporter = MetricsExporter(metrics, port)
    for _ in range(100):
        metrics.count(record())
    exporter.export()
    updates = port.updates
    exporter.export()
    assert port.updates == updates
    metrics.count(record())
    exporter.export()
    once = port.updates - updates
    for _ in range(100):
        metrics.count(record())
    exporter.export()
    # As many for a hundred requests as for one.
    assert port.updates - updates == 2 * once
    exporter.close()


def test_the_load_of_an_engine_that_is_loaded_again_and_unloaded() -> None:
    bench, port = Bench(), Port()
    exporter = MetricsExporter(bench.service.metrics, port)
    steps = line("engine_steps_total", model="tiny")
    for count in (9, 12, 3):
        bench.engine.stats = EngineStats(0, 0, 0.0, count, 40)
        exporter.export()
        assert port.values[steps] == count
    running = line("engine_sequences_running", model="tiny")
    assert port.kept[running] == 0
    bench.engine.stats, bench.engine.connected = None, False
    exporter.export()
    assert steps not in port.values
    # Triton's own port keeps it.
    assert math.isnan(port.kept[running])
    assert port.values[line("engine_up", model="tiny")] == 0
    exporter.close()


@pytest.mark.parametrize(("now", "shown"), [(12, 12), (3, 12)])
def test_what_a_killed_process_left_is_not_counted_twice(now: int, shown: int) -> None:
    steps, requests = line("engine_steps_total", model="tiny"), line("requests_total", **CHAT, outcome="done")
    # The engine has gone on, or was loaded again: then it counts from what is there, as nothing can be taken away.
    bench, port = Bench(), Port(left={steps: 9, requests: 5, line("engine_up", model="tiny"): 0})
    bench.engine.stats = EngineStats(0, 0, 0.0, now, 40)
    bench.service.metrics.count(record())
    exporter = MetricsExporter(bench.service.metrics, port)
    exporter.export()
    exporter.export()
    assert port.values[steps] == shown
    # /v1's page goes on counting, too.
    assert port.values[requests] == 6
    assert port.values[line("engine_up", model="tiny")] == 1
    exporter.close()


_LEADER = """
import sys
from openai_bls.pipeline.metrics.directory import Leadership
leadership = Leadership()
for _ in sys.stdin:
    print(leadership.have(), flush=True)
"""


def test_one_of_the_instances_leads_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metrics_directory.VARIABLE, str(tmp_path))

    def instance() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _LEADER]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)

    def leads(process: Any) -> bool:
        process.stdin.write("?\n")
        process.stdin.flush()
        return bool(process.stdout.readline() == "True\n")

    with instance() as first, instance() as second:
        assert [leads(first), leads(second), leads(first)] == [True, False, True]
        first.kill()
        first.wait()
        assert leads(second)
        second.kill()


def test_an_instance_that_gives_up_lets_another_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(metrics_directory.VARIABLE, raising=False)
    assert metrics_directory.Leadership().have()
    monkeypatch.setenv(metrics_directory.VARIABLE, str(tmp_path))
    first, second = metrics_directory.Leadership(), metrics_directory.Leadership()
    assert (first.have(), second.have()) == (True, False)
    first.give_up()
    assert second.have()
    second.give_up()
