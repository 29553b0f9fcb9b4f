"""Results of `benchmarks.gpu`, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.engine import Floor, Variant
from benchmarks.report import MISSING, markdown_table
from benchmarks.stats import Measurement

MAIN = "auto"
"""Variant with the engine's own choices."""


@dataclass
class Results:
    """Everything measured so far."""

    made: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    """By stage: seconds it took, and how it ended."""
    floor: Floor | None = None
    direct: list[Variant] = field(default_factory=list)
    """The engine alone."""
    served: list[Measurement] = field(default_factory=list)
    """/v1 with the settings of `MAIN`, by concurrency."""
    golden: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By variant: how many answers are the same, alone and together."""

    def direct_rate(self, level: int) -> float | None:
        """Tokens/s of the engine alone, with the settings of `MAIN`."""
        for variant in self.direct:
            for one in variant.levels:
                if variant.name == MAIN and one.concurrency == level:
                    return one.tokens_per_s
        return None


def summary(results: Results, levels: Sequence[int]) -> str:
    """The results as Markdown."""
    parts = ["# The embedded engine on a GPU"]
    if results.made:
        versions = ", ".join(f"{name} {version}" for name, version in results.made["versions"].items())
        parts.append(f"{results.made['date']}, {results.made['cores']} cores ({results.made['cpu_model']}). {versions}")
    if limit := results.floor:
        parts.append(
            f"Floor at one sequence: {limit.step_bytes / 1e9:.2f} GB of weights per step (of "
            f"{limit.weight_bytes / 1e9:.2f}) at {limit.bytes_per_s / 1e12:.2f} TB/s of a copy: "
            f"{limit.token_ms:.2f} ms per token."
        )
    served = [_served_row(one, results.direct_rate(one.concurrency)) for one in results.served]
    direct = [_direct_row(one, levels) for one in results.direct]
    golden = [[name, *(str(one[key]) for key in _GOLDEN)] for name, one in results.golden.items()]
    stages = [[name, said.replace("|", "/")] for name, said in results.stages.items()]
    for title, headers, body in (
        ("/v1 against the engine alone", _SERVED, served),
        ("The engine alone, tokens/s", ("variant", *(f"at {level}" for level in levels), *_DIRECT), direct),
        ("Golden answers", ("variant", *_GOLDEN), golden),
        ("Stages", ("stage", "took"), stages),
    ):
        parts += [f"## {title}", markdown_table(headers, body)] if body else []
    return "\n\n".join(parts) + "\n"


_SERVED = (
    *("conc.", "requests", "failed", "TTFT p50", "ITL p50", "ITL p99", "tokens/s", "engine alone", "ratio"),
    "CPU µs per token by process",
)
_DIRECT = ("TTFT at 1", "ITL at 1", "of floor", "error")
_GOLDEN = ("alone", "together", "answers")


def _served_row(one: Measurement, alone: float | None) -> list[str]:
    cpu = {name: seconds / max(one.tokens, 1) * 1e6 for name, seconds in one.server_cpu_by_process.items()}
    return [
        *(f"{value:,}" for value in (one.concurrency, one.requests, one.failed)),
        *(f"{value:.2f}" for value in (one.first_token_ms_p50, one.gap_ms_p50, one.gap_ms_p99)),
        f"{one.tokens_per_s:,.0f}",
        *((f"{alone:,.0f}", f"{one.tokens_per_s / alone:.1%}") if alone else (MISSING, MISSING)),
        ", ".join(f"{name} {micros:,.1f}" for name, micros in cpu.items()),
    ]


def _direct_row(variant: Variant, levels: Sequence[int]) -> list[str]:
    by_level = {one.concurrency: one for one in variant.levels}
    first = by_level.get(1)
    return [
        variant.name,
        *(f"{by_level[level].tokens_per_s:,.0f}" if level in by_level else MISSING for level in levels),
        *((f"{first.first_token_p50:.1f}", f"{first.gap_p50:.2f}") if first else (MISSING, MISSING)),
        f"{variant.floor_share:.0%}" if variant.floor_share else MISSING,
        variant.error,
    ]
