"""Plot of `benchmarks.serve_layer`: tokens per second by concurrency, and CPU time per token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cells import Results
from benchmarks.goals import rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BARS_AT = (64, 128)
# Colours that stay apart for colour-blind readers (Okabe and Ito); one a contender, a line style a transport.
_COLOURS = {"bare": "#999999", "official_bls": "#D55E00", "ensemble": "#E69F00", "ours": "#0072B2"}
_STYLES = {"generate_stream": ("-", "o"), "grpc": ("--", "s"), "/v1 chat": ("-", "D")}
_V1_COLOUR = "#009E73"


def look(label: str) -> tuple[str, str, str]:
    """Colour, line style and marker of a path by its name in tables."""
    contender, _, path = label.partition(" ")
    colour = _V1_COLOUR if label == "ours /v1 chat" else _COLOURS.get(contender, "#000000")
    return colour, *_STYLES.get(path, ("-", "o"))


def write_plot(results: Results, file: Path, subtitle: str) -> None:
    """Write the plot as PNG.

    Raises:
        ImportError: matplotlib is not installed (`pip install 'openai_bls[bench]'`).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"The serving layer alone, over an engine that costs nothing\n{subtitle}", fontsize=12)
    lines, bars = figure.subplots(1, 2, width_ratios=(3, 2))
    labels = list(dict.fromkeys(one.path for one in results.of("throughput")))
    levels = results.levels("throughput")
    _throughput(lines, results, labels, levels)
    _cpu_time(bars, results, labels, levels)
    handles = lines.get_legend_handles_labels()
    if handles[0]:
        figure.legend(*handles, fontsize=9, loc="outside lower center", ncols=5)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def _throughput(axes: Axes, results: Results, labels: list[str], levels: list[int]) -> None:
    """Tokens per second by concurrency, a line for each path."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    broken: list[tuple[int, float]] = []
    for label in labels:
        points = [(level, results.median("throughput", label, level, rate)) for level in levels]
        known = [(level, spread) for level, spread in points if spread is not None and spread.median > 0]
        if not known:
            continue
        rounds = {level: results.rounds("throughput", label, level).values() for level, _ in known}
        broken += [(level, s.median) for level, s in known if any(one.failed for one in rounds[level])]
        medians = [spread.median for _, spread in known]
        errors = [[s.median - s.low for _, s in known], [s.high - s.median for _, s in known]]
        at = [level for level, _ in known]
        colour, style, marker = look(label)
        axes.errorbar(
            at, medians, yerr=errors, color=colour, linestyle=style, marker=marker, markersize=5, capsize=3, label=label
        )
    if broken:
        # Drawn over the points of whichever path they belong to.
        axes.plot(*zip(*broken, strict=True), "rx", markersize=11, markeredgewidth=2, zorder=5, label="requests failed")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.set_xlabel("concurrent streams")
    axes.set_ylabel("tokens per second (log scale)")
    axes.set_title("Throughput: median and range of the rounds", fontsize=11)
    axes.grid(visible=True, which="both", alpha=0.25)


def _cpu_time(axes: Axes, results: Results, labels: list[str], levels: list[int]) -> None:
    """Server CPU time per token, a pair of bars for each path."""
    shown = [level for level in _BARS_AT if level in levels] or levels[-1:]
    height = 0.8 / max(len(shown), 1)
    longest = 0.0
    for offset, level in enumerate(shown):
        for row, label in enumerate(labels):
            spread = results.median("throughput", label, level, lambda one: one.server_cpu_per_1k)
            if spread is None:
                continue
            milliseconds = 1000 * spread.median
            longest = max(longest, milliseconds)
            y = row + (offset - (len(shown) - 1) / 2) * height
            axes.barh(y, milliseconds, height, color=look(label)[0], alpha=0.55 if offset else 1.0)
            axes.text(milliseconds, y, f" {milliseconds:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.12 or 1.0)
    axes.set_xlabel("server CPU, ms per 1,000 tokens (less is better)")
    shades = " (dark) and ".join(map(str, shown)) + " streams" + " (light)" * (len(shown) > 1)
    axes.set_title(f"CPU time at {shades}", fontsize=11)
    axes.grid(visible=True, axis="x", alpha=0.25)
