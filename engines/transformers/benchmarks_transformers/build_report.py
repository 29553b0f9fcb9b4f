"""What `benchmarks_transformers.builds` measures of a build, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.support.engine import Level, Variant
from benchmarks.support.report import MISSING, markdown_table
from benchmarks_transformers import mixed_load

JSON_STREAMS = 64
_ERROR_CHARACTERS = 300


@dataclass
class Result:
    """What came of one build."""

    speed: Variant
    first_requests_ms: list[float] = field(default_factory=list)
    """To the token of the first request after the load, and of the next."""
    prompts_ms: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By tokens of a prompt that comes alone: to its token, and per token after that."""
    gpu_bytes: int = 0
    """Of tensors: weights, and a KV cache of the same tokens for every build."""
    self_test: str = ""
    json: dict[str, float] = field(default_factory=dict)
    """Tokens/s of 64 streams of JSON, and of plain text."""
    mixed: list[mixed_load.Rate] = field(default_factory=list)
    beside: dict[str, float] = field(default_factory=dict)
    """Milliseconds between the tokens of 64 streams, and while a long prompt is taken in beside them."""
    golden: dict[str, Any] | None = None
    golden_error: str = ""

    @property
    def json_share(self) -> float | None:
        """Tokens/s of JSON over those of plain text."""
        return self.json["JSON"] / self.json["plain"] if self.json else None


def speed_table(results: Sequence[Result], at: Sequence[int]) -> str:
    """Time per token and tokens/s as Markdown, each beside its ratio to the first build's."""
    levels = [{level.concurrency: level for level in one.speed.levels} for one in results]

    def cells(found: Level | None, first: Level | None) -> list[str]:
        if found is None:
            return [MISSING] * 4
        ratio = f"{found.tokens_per_s / first.tokens_per_s:.2f}" if first else MISSING
        return [f"{found.gap_p50:.2f}", f"{found.gap_p99:.2f}", f"{found.tokens_per_s:,.0f}", ratio]

    headers = [cell for level in at for cell in (f"ITL p50 ms at {level}", "p99", f"tokens/s at {level}", "times")]
    rows = [
        [
            one.speed.name,
            f"{one.speed.load_s:.1f}" if one.speed.levels else MISSING,
            *(cell for level in at for cell in cells(found.get(level), levels[0].get(level))),
            one.speed.error.replace("|", "/")[:_ERROR_CHARACTERS],
        ]
        for one, found in zip(results, levels, strict=True)
    ]
    return markdown_table(["build", "load s", *headers, "error"], rows)


def load_table(results: Sequence[Result], prompts: Sequence[int]) -> str:
    """What a build holds, its first requests, long prompts, and how it passed its self-test, as Markdown."""
    rows = [
        [
            one.speed.name,
            f"{one.gpu_bytes / 2**30:.1f}" if one.gpu_bytes else MISSING,
            ", then ".join(f"{value:.1f}" for value in one.first_requests_ms) or MISSING,
            *(cell for length in prompts for cell in _prompt_cells(one, length)),
            one.self_test or "refused",
        ]
        for one in results
    ]
    timed = [cell for length in prompts for cell in (f"TTFT ms of {length:,} tokens", "ITL ms")]
    return markdown_table(["build", "GiB", "first requests, ms", *timed, "self-test"], rows)


def _prompt_cells(result: Result, length: int) -> list[str]:
    return [f"{value:.1f}" for value in result.prompts_ms.get(length, ())] or [MISSING] * 2


def json_table(results: Sequence[Result]) -> str:
    """JSON beside plain text as Markdown."""
    rows = [
        [one.speed.name, *(f"{one.json[name]:,.0f}" for name in ("plain", "JSON")), f"{one.json_share:.2f}"]
        for one in results
        if one.json_share
    ]
    return markdown_table((f"{JSON_STREAMS} streams", "plain tokens/s", "JSON tokens/s", "times"), rows)


def golden_table(results: Sequence[Result]) -> str:
    """Golden answers as Markdown."""
    counts = ("alone", "together", "answers")
    rows = [
        [
            one.speed.name,
            *(str(one.golden[count]) if one.golden else MISSING for count in counts),
            (one.golden["error"] if one.golden else one.golden_error).replace("|", "/")[:_ERROR_CHARACTERS],
        ]
        for one in results
    ]
    return markdown_table(["golden answers", *counts, "error"], rows)
