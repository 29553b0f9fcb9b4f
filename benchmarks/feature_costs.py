"""What `benchmarks.features` measures: plain greedy sequences beside ones that ask for a feature."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.asking import Answer, Asker
from benchmarks.feature_cases import GREEDY, asked, grammar_of, prompt
from benchmarks.random_checkpoint import text_ids
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams

PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Feature:
    """What some sequences ask for."""

    name: str
    sampling: SamplingParams = GREEDY
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of `GenerationRequest`."""

    def requests(self, count: int, tokens: int, numbers: random.Random) -> list[GenerationRequest]:
        """So many sequences, with prompts all different."""
        prompts = [prompt(numbers.getrandbits(32), PROMPT_TOKENS) for _ in range(count)]
        return [asked(ids, tokens, self.sampling, **self.more) for ids in prompts]


@dataclass
class Costs:
    """What has been measured so far."""

    rates: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """By row and number of sequences: tokens/s of each round."""
    shares: dict[str, float] = field(default_factory=dict)
    """By row: which share of the sequences the rates are of."""
    rounds: int = 0
    left_out: int = 0
    """Rounds for which there was no time."""
    errors: list[str] = field(default_factory=list)

    def add(self, row: str, level: int, rate: float, share: float = 1.0) -> None:
        """One measurement."""
        self.rates.setdefault(row, {}).setdefault(level, []).append(rate)
        self.shares[row] = share


def features(tokens: int, info: EngineInfo) -> list[Feature]:
    """All that is priced, plain first; with grammars that do not end within `tokens`."""
    bias = dict.fromkeys(random.Random(3).sample(text_ids(), 10), 1.0)
    item = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    schema = {"type": "array", "items": item, "minItems": tokens}
    endless = {"type": "json_schema", "json_schema": schema}
    return [
        Feature("plain"),
        Feature("logprobs 0", more={"logprobs": 0}),
        Feature("logprobs 5", more={"logprobs": 5}),
        Feature("repetition_penalty", SamplingParams(temperature=0, repetition_penalty=1.1)),
        Feature("frequency_penalty", SamplingParams(temperature=0, frequency_penalty=0.5)),
        Feature("logit_bias of 10", SamplingParams(temperature=0, logit_bias=bias)),
        *([Feature("JSON", more={"grammar": grammar_of(endless, info)})] if info.grammar_backend else []),
    ]


def group_rates(groups: Sequence[Sequence[Answer]]) -> list[float]:
    """Tokens/s of each group of answers, up to when the first group has ended."""
    started = min(answer.asked for group in groups for answer in group)
    until = min(max(answer.ended for answer in group) for group in groups)
    return [sum(at <= until for answer in group for at in answer.times) / (until - started) for group in groups]


def measure(asker: Asker, groups: Sequence[tuple[Feature, int]], tokens: int, seed: int) -> list[float]:
    """Tokens/s of each group, a feature and a number of sequences, all at once.

    Raises:
        RuntimeError: a request ended with an error.
        TimeoutError: or not at all.
    """
    numbers = random.Random(seed)
    requests = [feature.requests(count, tokens, numbers) for feature, count in groups]
    answers = asker.ask([request for group in requests for request in group])
    for answer in answers:
        if answer.error is not None:
            raise RuntimeError(answer.error)
    found, start = [], 0
    for _, count in groups:
        found.append(answers[start : start + count])
        start += count
    return group_rates(found)


def price(
    asker: Asker,
    chosen: Sequence[Feature],
    counts: Sequence[int],
    tokens: int,
    rounds: int,
    ends: float,
    costs: Costs,
    after_each: Callable[[], None],
) -> None:
    """Measure in rounds of everything: one in any case, further ones as long as they fit in.

    Args:
        asker: has the engine.
        chosen: plain first.
        counts: of sequences at a time.
        tokens: of each output.
        rounds: the most.
        ends: when to be done, by `time.monotonic`.
        costs: where to put it all.
        after_each: called after each measurement.
    """
    plain, took = chosen[0], 0.0

    def add(rows: Sequence[str], groups: Sequence[tuple[Feature, int]], level: int, seed: int) -> None:
        try:
            for row, (_, count), rate in zip(rows, groups, measure(asker, groups, tokens, seed), strict=True):
                costs.add(row, level, rate, count / level)
        except (RuntimeError, TimeoutError) as error:
            costs.errors.append(f"{rows[0]} at {level}: {error}")
        after_each()

    for feature in chosen:  # whatever is made on first use
        for level in counts:
            measure(asker, [(feature, level)], 4, 0)
    for done in range(rounds):
        started = time.monotonic()
        if done and started + took > ends:
            costs.left_out = rounds - done
            return
        for level in counts:
            seed = done << 32 | level
            for feature in chosen:
                add([feature.name], [(feature, level)], level, seed)
            for feature in chosen:
                if "grammar" in feature.more and level > 1:
                    groups = [(feature, level // 2), (plain, level - level // 2)]
                    add([f"half {feature.name}", f"plain beside {feature.name}"], groups, level, seed)
        took = time.monotonic() - started
        costs.rounds += 1
        print(f"round {costs.rounds}: {took:.1f} s", file=sys.stderr, flush=True)


def first_grammars(asker: Asker, info: EngineInfo) -> dict[str, float]:
    """Milliseconds to the first token: with the first grammar of an engine, with another, with the first again, and
    without one."""

    def millis(more: dict[str, Any]) -> float:
        [answer] = asker.ask([asked(prompt(9), 1, **more)])
        return (answer.ended - answer.asked) * 1e3

    def typical(size: int) -> dict[str, Any]:
        kinds = [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "number"}}, {"enum": [1]}]
        properties = {f"field_{i}": kinds[i % len(kinds)] for i in range(size)}
        schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
        return {"grammar": grammar_of({"type": "json_schema", "json_schema": schema}, info)}

    one, other = typical(12), typical(13)
    millis({})
    first = millis(one)
    plain = sorted(millis({}) for _ in range(5))[2]
    return {"first": first, "another": millis(other), "again": millis(one), "none": plain}
