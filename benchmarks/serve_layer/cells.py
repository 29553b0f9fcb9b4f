"""Results of `benchmarks.serve_layer`: cells, and ratios between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.clients.stats import Measurement
from benchmarks.support.spread import Spread, known_spread

Stage = Literal["throughput", "paced", "first token", "crowd"]
"""As fast as possible; at a pace; single requests with pauses, at the same pace; very many streams at once."""


@dataclass(frozen=True)
class Shape:
    """Amounts and kinds of requests."""

    levels: tuple[int, ...]
    """Requests in progress at the same time, in the stage `throughput`."""
    seconds: float
    """For a cell; requests in progress are then waited for."""
    prompt_tokens: int
    """About, those of a chat template included."""
    output_tokens: int
    """Exactly."""
    step_delay_ms: float
    """Of the stages with a pace."""
    paced_level: int
    singles: int
    """Requests of the stage `first token`."""
    crowd: int
    """Streams at the same time in the stage `crowd`."""
    timeout_s: float = 120.0
    """Seconds for a request."""
    stall_s: float = 10.0
    """Seconds without any data on any stream after which a cell has failed."""


Value = Callable[[Measurement], float | None]


@dataclass(frozen=True)
class Cell:
    """One measurement of one path of one contender, in one round."""

    stage: Stage
    round: int
    """Counted from 1."""
    result: Measurement
    """Its `path` is the contender's name and the path's."""


@dataclass
class Results:
    """Everything found."""

    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What went wrong outside of requests."""
    versions: dict[str, str] = field(default_factory=dict)

    def rounds(self, stage: Stage, path: str, concurrency: int) -> dict[int, Measurement]:
        """The measurements of one cell by round."""
        return {
            cell.round: cell.result
            for cell in self.cells
            if (cell.stage, cell.result.path, cell.result.concurrency) == (stage, path, concurrency)
        }

    def of(self, stage: Stage) -> list[Measurement]:
        """Everything measured in `stage`."""
        return [cell.result for cell in self.cells if cell.stage == stage]

    def levels(self, stage: Stage) -> list[int]:
        """The concurrencies of `stage`, ascending."""
        return sorted({one.concurrency for one in self.of(stage)})

    def median(self, stage: Stage, path: str, concurrency: int, value: Value) -> Spread | None:
        """A number over the rounds in which it could be measured; None if there is none."""
        return known_spread(map(value, self.rounds(stage, path, concurrency).values()))

    def compare(
        self,
        stage: Stage,
        one: tuple[str, int],
        other: tuple[str, int],
        value: Value,
        by: Callable[[float, float], float] = lambda a, b: a / b,
    ) -> Spread | None:
        """`value` of cell `one`, a path and a concurrency, over that of cell `other`, round by round.

        Rounds are compared each with itself, so that what a shared machine does from one to the next cancels out.
        """
        ours, theirs = self.rounds(stage, *one), self.rounds(stage, *other)
        pairs = [(value(ours[number]), value(theirs[number])) for number in sorted(ours.keys() & theirs.keys())]
        return known_spread(by(a, b) for a, b in pairs if a is not None and b)
