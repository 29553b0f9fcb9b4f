"""Percentiles of times, and medians of repeated measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


def percentile_ms(seconds: Seconds, percent: float) -> float:
    """A percentile, interpolated, in milliseconds; NaN of nothing."""
    return float(np.percentile(seconds, percent)) * 1000 if len(seconds) else float("nan")


@dataclass(frozen=True)
class Spread:
    """A number over repeated measurements."""

    median: float
    low: float
    high: float


def known_spread(values: Iterable[float | None]) -> Spread | None:
    """Median and range of the numbers among `values`; None if there is none."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return Spread(float(np.median(known)), min(known), max(known)) if known else None
