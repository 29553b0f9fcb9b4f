"""The embedded engine under an open loop of mixed requests: `python -m benchmarks_transformers.mixed_load ENGINE_DIR`.

Requests come at random moments (Poisson arrivals) whatever the engine does, with prompts and outputs of log-normal
lengths, as users' are. Nothing of a prompt is shared with another. At each rate: time to first token, time between
tokens, and goodput, the share of requests whose first token came within 500 ms and whose mean time between tokens was
at most 50 ms. The same seed gives the same requests at the same moments to every set of options.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.support import lengths
from benchmarks.support.asking import Answer, Asker, greedy, random_ids
from benchmarks.support.engine import parse_variant, show_log
from benchmarks.support.options import levels
from benchmarks.support.report import markdown_table
from benchmarks.support.spread import percentile_ms
from openai_bls.core.engine_types import GenerationRequest
from openai_bls.engines.registry import create_engine

_FIRST_TOKEN_S = 0.5
"""Seconds to the first token within which a request counts as served."""
_TOKEN_S = 0.05
"""Mean seconds per further token within which a request counts as served."""


@dataclass(frozen=True)
class Arrival:
    """One request and when it comes."""

    at_s: float
    request: GenerationRequest


def arrivals(rate: float, seconds: float, seed: int) -> list[Arrival]:
    """Requests of `seconds` at `rate` per second, the same for the same seed; those of two rates share no prompt."""
    source, at, found = random.Random(f"{seed} {rate}"), 0.0, []
    while (at := at + source.expovariate(rate)) < seconds:
        prompt = random_ids(source, lengths.PROMPTS.draw(source))
        found.append(Arrival(at, greedy(prompt, lengths.OUTPUTS.draw(source))))
    return found


@dataclass
class Rate:
    """Results at one rate. Times are milliseconds."""

    rate: float
    requests: int
    failed: int
    tokens_per_s: float
    first_token_p50: float
    first_token_p99: float
    gap_p50: float
    gap_p99: float
    gap_max: float
    goodput: float
    """Share of the requests."""


def run(asker: Asker, rate: float, seconds: float, seed: int) -> Rate:
    """Submit the requests of one rate at their moments, and wait for all."""
    planned = arrivals(rate, seconds, seed)
    started = time.perf_counter()
    answers = []
    for arrival in planned:
        time.sleep(max(0.0, started + arrival.at_s - time.perf_counter()))
        answers.append(asker.submit(arrival.request))
    asker.wait(seconds + 60)
    return summarize(rate, answers)


def _ms(seconds: Sequence[float], percent: int) -> float:
    return percentile_ms(np.array(seconds), percent)


def summarize(rate: float, answers: Sequence[Answer]) -> Rate:
    """The results of requests that have ended."""
    good = [answer for answer in answers if answer.error is None and answer.times]
    first = [answer.times[0] - answer.asked for answer in good]
    gaps = [b - a for answer in good for a, b in zip(answer.times, answer.times[1:], strict=False)]
    took = max(answer.ended for answer in answers) - min(answer.asked for answer in answers)
    served = [
        answer
        for answer in good
        if answer.times[0] - answer.asked <= _FIRST_TOKEN_S
        and (answer.times[-1] - answer.times[0]) <= _TOKEN_S * max(1, len(answer.times) - 1)
    ]
    return Rate(
        rate=rate,
        requests=len(answers),
        failed=len(answers) - len(good),
        tokens_per_s=sum(len(answer.times) for answer in good) / took,
        first_token_p50=_ms(first, 50),
        first_token_p99=_ms(first, 99),
        gap_p50=_ms(gaps, 50),
        gap_p99=_ms(gaps, 99),
        gap_max=max(gaps, default=0.0) * 1e3,
        goodput=len(served) / len(answers),
    )


def long_beside(asker: Asker, streams: int, prompt_tokens: int, output_tokens: int, seed: int) -> dict[str, float]:
    """Milliseconds between tokens of `streams` alone, and while one long prompt is taken in beside them."""
    source = random.Random(seed)

    def request(tokens: int, out: int) -> GenerationRequest:
        return greedy(random_ids(source, tokens), out)

    def gaps(answers: Sequence[Answer], begin: float, end: float) -> list[float]:
        return [
            b - a
            for answer in answers
            for a, b in zip(answer.times, answer.times[1:], strict=False)
            if a >= begin and b <= end
        ]

    answers = [asker.submit(request(64, output_tokens)) for _ in range(streams)]
    while not all(len(answer.times) > output_tokens // 4 for answer in answers):
        time.sleep(0.01)
    quiet_until = time.perf_counter()
    long = asker.submit(request(prompt_tokens, 2))
    asker.wait(60)
    begun = max(answer.times[output_tokens // 8] for answer in answers)
    return {
        "quiet p99": _ms(gaps(answers, begun, quiet_until), 99),
        "beside p50": _ms(gaps(answers, quiet_until, long.times[0]), 50),
        "beside p99": _ms(gaps(answers, quiet_until, long.times[0]), 99),
        "long prompt's first token": (long.times[0] - long.asked) * 1e3,
    }


def beside(asker: Asker, prompt_tokens: int) -> dict[str, float]:
    """Medians of three such measurements, of 64 streams."""
    rounds = [long_beside(asker, 64, prompt_tokens, 400, seed) for seed in range(3)]
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def table(found: Mapping[str, Sequence[Rate]]) -> str:
    """The results as Markdown."""
    headers = ("options", "requests/s", "out tokens/s", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "max", "goodput")
    rows = [
        [
            name,
            f"{one.rate:g}",
            f"{one.tokens_per_s:,.0f}",
            *(f"{value:.1f}" for value in (one.first_token_p50, one.first_token_p99)),
            *(f"{value:.1f}" for value in (one.gap_p50, one.gap_p99, one.gap_max)),
            f"{one.goodput:.2f}" + (f" ({one.failed} failed)" if one.failed else ""),
        ]
        for name, rates in found.items()
        for one in rates
    ]
    return markdown_table(headers, rows)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 1 if a request failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks_transformers.mixed_load", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("engine_dir", type=Path, help="such as model_repository/tensorrt_llm/1")
    parser.add_argument("--rates", type=levels, default="10,20,30,40,50,60", help="requests/s (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each rate (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--long-prompt", type=int, metavar="TOKENS", help="one such prompt beside 64 streams as well")
    parser.add_argument("--variant", action="append", metavar="NAME:OPTION=VALUE,...", help="settings to compare")
    options = parser.parse_args(arguments)
    show_log()
    found: dict[str, list[Rate]] = {}
    for variant in map(parse_variant, options.variant or ["auto"]):
        asker = Asker()
        engine = asker.engine = create_engine(options.engine_dir, asker.on_step, variant.options)
        try:
            run(asker, 5, 3, options.seed + 1)
            for rate in options.rates:
                found.setdefault(variant.name, []).append(run(asker, rate, options.seconds, options.seed))
                print(json.dumps({"options": variant.name} | asdict(found[variant.name][-1])), file=sys.stderr)
            if options.long_prompt:
                medians = beside(asker, options.long_prompt)
                print(variant.name, ", ".join(f"{name} {value:.1f} ms" for name, value in medians.items()))
        finally:
            engine.close()
    print(table(found))
    return int(any(one.failed for rates in found.values() for one in rates))


if __name__ == "__main__":
    sys.exit(main())
