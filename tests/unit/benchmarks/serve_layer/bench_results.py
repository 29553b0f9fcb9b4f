"""Made-up results of `benchmarks.serve_layer`."""

from __future__ import annotations

from collections import Counter

import numpy as np

from benchmarks.clients.stats import ClientReport, Measurement, measurement
from benchmarks.serve_layer.cells import Cell, Results, Shape, Stage

SHAPE = Shape(
    levels=(64, 128, 512),
    seconds=0.2,
    prompt_tokens=64,
    output_tokens=10,
    step_delay_ms=5.0,
    paced_level=64,
    singles=4,
    crowd=2000,
    stall_s=2.0,
)


def made_up(
    path: str,
    level: int,
    rate: float,
    *,
    cpu_s: float = 1.0,
    first_ms: float = 10.0,
    gap_ms: float = 6.0,
    failed: int = 0,
) -> Measurement:
    """A measurement of 10,000 tokens."""
    report = ClientReport(
        requests=10 + failed,
        failures=Counter({"incomplete: it broke": failed}) if failed else Counter(),
        prompt_tokens=640,
        completion_tokens=10_000,
        text_events=5_000,
        first_token=np.full(10, first_ms / 1000),
        gaps=np.full(10, gap_ms / 1000),
        started=0.0,
        ended=10_000 / rate,
        cpu_s=0.1,
    )
    return measurement(path, level, report, {"tritonserver": cpu_s})


def good_results() -> Results:
    """Two rounds; the machine is half as fast in the second."""
    results = Results(versions={"tritonserver": "2.51.0"})

    def add(number: int, stage: Stage, one: Measurement) -> None:
        results.cells.append(Cell(stage, number, one))

    for number, speed in ((1, 1.0), (2, 0.5)):
        for level in SHAPE.levels:
            add(number, "throughput", made_up("bare generate_stream", level, 10_000 * speed, cpu_s=2.0))
            add(number, "throughput", made_up("bare grpc", level, 8_000 * speed, cpu_s=2.0))
            add(number, "throughput", made_up("ensemble generate_stream", level, 5_000 * speed, cpu_s=3.0))
            add(number, "throughput", made_up("ensemble grpc", level, 4_000 * speed, cpu_s=3.0))
            add(number, "throughput", made_up("ours /v1 chat", level, 20_000 * speed, cpu_s=1.0))
            add(number, "throughput", made_up("ours generate_stream", level, 9_000 * speed, cpu_s=2.5))
            add(number, "throughput", made_up("ours grpc", level, 7_000 * speed, cpu_s=2.5))
        for path, first_ms in (
            ("bare generate_stream", 1.0),
            ("bare grpc", 1.5),
            ("ours /v1 chat", 2.0),
            ("ours generate_stream", 2.5),
            ("ours grpc", 3.0),
        ):
            add(number, "first token", made_up(path, 1, 100, first_ms=first_ms))
            add(number, "paced", made_up(path, 64, 1_000))
        for path in ("ours /v1 chat", "ours generate_stream", "ours grpc"):
            add(number, "crowd", made_up(path, 2000, 9_000 * speed))
    return results
