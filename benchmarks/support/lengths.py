"""Lengths of prompts and outputs as users' are: log-normal, cut to bounds."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """Log-normal lengths in tokens, cut to bounds."""

    mean: float
    least: int
    most: int
    deviation: float
    """Of the logarithm."""

    def draw(self, source: random.Random) -> int:
        """A length."""
        center = math.log(self.mean) - self.deviation**2 / 2
        return min(self.most, max(self.least, round(source.lognormvariate(center, self.deviation))))


PROMPTS = Lengths(mean=560, least=50, most=4000, deviation=0.9)
OUTPUTS = Lengths(mean=155, least=20, most=500, deviation=0.7)
