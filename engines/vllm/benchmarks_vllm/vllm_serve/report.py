"""Tables of `benchmarks_vllm.vllm_serve`, held against the goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.clients.stats import Measurement
from benchmarks.support.report import MISSING, goals_table, markdown_table
from benchmarks.support.spread import Spread, known_spread
from benchmarks_vllm.vllm_serve.death import Death
from benchmarks_vllm.vllm_serve.engine_settings import differences
from benchmarks_vllm.vllm_serve.servers import EMBEDDED, ONE_GPU, OVER_VLLM, VLLM_SERVE
from benchmarks_vllm.vllm_serve.session import Results

Value = Callable[[Measurement], float | None]
_NAMES = (VLLM_SERVE, OVER_VLLM, EMBEDDED, ONE_GPU)
_HEADERS = (
    *("load", "server", "tokens/s", "times", "TTFT p50 ms", "p99", "ITL p50 ms", "p99"),
    *("CPU s per 1,000 tokens", "times", "failed"),
)


def rate(one: Measurement) -> float | None:
    """Tokens/s; None where requests failed."""
    return None if one.failed else one.tokens_per_s


def cpu(one: Measurement) -> float | None:
    """CPU seconds of all processes of the server per 1,000 tokens."""
    return one.server_cpu_per_1k


def first_token(one: Measurement) -> float | None:
    """Median time to the first token, ms."""
    return one.first_token_ms_p50


def _median(results: Results, server: str, load: str, value: Value) -> Spread | None:
    return known_spread(value(one) for one in results.found(server, load))


def times(results: Results, server: str, load: str, value: Value) -> float | None:
    """Median of a server's over `vllm serve`'s; None where one is missing."""
    own, reference = (_median(results, name, load, value) for name in (server, VLLM_SERVE))
    return own.median / reference.median if own and reference and reference.median else None


def goals(results: Results) -> Iterator[tuple[str, str, float, float | None]]:
    """Each goal of /v1 over vLLM: its name, its sign, its limit, and what was measured."""
    for load in ("64", "256"):
        if load in results.loads:
            yield f"{load} streams, times the tokens/s", "≥", 1.05, times(results, OVER_VLLM, load, rate)
            yield f"{load} streams, times the CPU per token", "≤", 0.7, times(results, OVER_VLLM, load, cpu)
    if "256" in results.loads:
        yield "256 streams, times the time to the first token", "≤", 0.5, times(results, OVER_VLLM, "256", first_token)
    for load in results.loads:
        if load not in ("64", "256"):
            yield f"{load}, times the tokens/s", "≥", 0.98, times(results, OVER_VLLM, load, rate)


def summary(results: Results) -> str:
    """Everything as Markdown."""
    parts = [
        "## vLLM behind `vllm serve` and behind this project",
        f"`{results.made.command}`",
        f"{results.made.date}, {results.made.cores} cores ({results.made.cpu_model}). "
        + ", ".join(f"{name} {version}" for name, version in results.made.versions.items()),
        "Medians of the rounds, the range in brackets; all servers up, asked in turns by the same client. Times: over "
        "`vllm serve`. CPU: of all processes of a server, client left out. ITL: from one text event to the next.",
        loads_table(results),
        goals_table(goals(results)),
        settings_text(results),
    ]
    if results.death is not None:
        parts.append(death_text(results.death))
    parts += [f"{name} is missing: {problem[:600]}" for name, problem in results.problems.items()]
    return "\n\n".join(parts) + "\n"


def loads_table(results: Results) -> str:
    """A row for each load and server."""
    rows = [_row(results, load, name) for load in results.loads for name in _NAMES if results.found(name, load)]
    return markdown_table(_HEADERS, rows)


def _row(results: Results, load: str, name: str) -> list[str]:
    def shown(value: Value, digits: int) -> str:
        return _number(_median(results, name, load, value), digits)

    def against(value: Value) -> str:
        found = times(results, name, load, value)
        return MISSING if found is None else f"{found:.2f}"

    return [
        *(load, name, shown(rate, 0), against(rate)),
        *(shown(first_token, 1), shown(lambda one: one.first_token_ms_p99, 1)),
        *(shown(lambda one: one.gap_ms_p50, 2), shown(lambda one: one.gap_ms_p99, 1)),
        *(shown(cpu, 3), against(cpu), str(sum(one.failed for one in results.found(name, load)))),
    ]


def _number(value: Spread | None, digits: int) -> str:
    if value is None:
        return MISSING
    text = f"{value.median:,.{digits}f}"
    return text if value.low == value.high else f"{text} ({value.low:,.{digits}f} to {value.high:,.{digits}f})"


def settings_text(results: Results) -> str:
    """Settings of both engines by their logs, and whether they are the same."""
    given = ", ".join(f"{name} {value}" for name, value in results.arguments.items())
    lines = [f"Engine arguments of both vLLMs: {given}."]
    both = [results.settings.get(name, {}) for name in (VLLM_SERVE, OVER_VLLM)]
    differing = differences(*both)
    same = [f"{name} {value}" for name, value in both[0].items() if name in both[1] and name not in differing]
    if all(both):
        lines.append(f"The same by their logs: {', '.join(same) or 'nothing'}.")
        unlike = [f"{name} {both[0][name]} and {both[1][name]}" for name in differing]
        lines.append(f"Different: {', '.join(unlike) or 'none'}.")
    ready = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in results.ready_s.items())
    return "\n\n".join([*lines, f"Ready after: {ready}."])


def death_text(death: Death) -> str:
    """What the death of a worker did."""
    failed = ", ".join(f"{count} with {message!r}" for message, count in death.failed.items())
    back = "no answer came" if death.back_s is None else f"the next answer came after {death.back_s:.1f} s"
    return (
        f"{death.worker} was killed beside {death.streams} streams. They ended within {death.told_s:.2f} s: "
        f"{failed or 'all well'}; {back}."
    )
