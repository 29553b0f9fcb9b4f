"""Loads for speculative decoding on a continuing checkpoint, whose every next token is known.

A prompt holds the text that the model is going to write, whole or with changed tokens at known distances, and ends with
the token before it. This measures the machinery, not a model: how often a draft is right is the load's own choice.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.support.asking import GREEDY
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, Grammar, SamplingParams
from openai_bls.output import structured

DRAWN = SamplingParams(temperature=1.0, seed=5)
_HOT = SamplingParams(temperature=4.0, top_k=2, seed=5)
"""A token in three is left out."""
_RECORDS = 8


@dataclass
class Load:
    """Requests of one kind, and how both engines answer them."""

    name: str
    requests: Sequence[GenerationRequest]
    at_once: int = 1
    """Requests in progress at a time."""
    plain: list[float] = field(default_factory=list)
    """Tokens/s in each round."""
    drafting: list[float] = field(default_factory=list)
    """The same with speculation."""
    plain_steps: int = 0
    """In one round, as all that follows."""
    drafting_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    answers: int = 0
    equal: int = 0
    """Answers with the same tokens."""

    @property
    def times(self) -> float:
        """Median of the rounds: tokens/s with speculation over those without."""
        return statistics.median(b / a for a, b in zip(self.plain, self.drafting, strict=True))


class Continued:
    """Requests to a model that continues a cycle of tokens."""

    def __init__(self, tokens: Sequence[int], count: int) -> None:
        """Args: tokens: of the cycle; count: new tokens of a request, at most half of it."""
        self._tokens = list(tokens)
        self._count = min(count, len(tokens) // 2)

    def text(self, start: int, count: int) -> list[int]:
        """`count` tokens of the cycle from index `start` on."""
        return [self._tokens[(start + i) % len(self._tokens)] for i in range(count)]

    def changed(self, text: Sequence[int], every: int, source: random.Random) -> list[int]:
        """`text` with every so many-th token replaced by another of the cycle; 0 is none."""
        return [source.choice(self._tokens) if every and i % every == every - 1 else t for i, t in enumerate(text)]

    def copying(self, number: int, every: int, sampling: SamplingParams = GREEDY) -> GenerationRequest:
        """A request whose prompt holds its answer, with changes."""
        source = random.Random(number)
        start = source.randrange(len(self._tokens))
        copy = self.changed(self.text(start, self._count + 1), every, source)
        return GenerationRequest(0, [*copy, self._tokens[start]], self._count, sampling)

    def predicted(self, number: int, every: int, sampling: SamplingParams = GREEDY) -> GenerationRequest:
        """A request with its answer, with changes, as prediction."""
        source = random.Random(number)
        start = source.randrange(len(self._tokens))
        prediction = self.changed(self.text(start + 1, self._count), every, source)
        return GenerationRequest(0, [self._tokens[start]] * 8, self._count, sampling, prediction=tuple(prediction))

    def misleading(self, number: int) -> GenerationRequest:
        """A request whose prompt holds every pair of tokens of its answer, and always goes on otherwise."""
        source = random.Random(number)
        start = source.randrange(len(self._tokens))
        pairs = (token for i in range(self._count) for token in (*self.text(start + i, 2), self._tokens[start - 1]))
        return GenerationRequest(0, [*pairs, self._tokens[start]], self._count, GREEDY)

    def unlike(self, number: int, sampling: SamplingParams = GREEDY) -> GenerationRequest:
        """A request with nothing to copy."""
        source = random.Random(number)
        return GenerationRequest(0, source.sample(self._tokens, self._count), self._count, sampling)


def loads(continued: Continued, info: EngineInfo) -> Iterator[Load]:
    """All loads, the most telling first.

    Args:
        continued: requests.
        info: of the engine.
    """
    yield Load("copies its prompt, greedy", [continued.copying(1, 0)])
    yield Load("copies its prompt, sampled", [continued.copying(1, 0, DRAWN)])
    yield Load("copies its prompt, a third left out", [continued.copying(1, 0, _HOT)])
    yield Load("nothing to copy, greedy", [continued.unlike(2)])
    yield Load("nothing to copy, sampled", [continued.unlike(2, DRAWN)])
    yield Load("prediction right", [continued.predicted(3, 0)])
    yield Load("prediction, a quarter wrong", [continued.predicted(3, 4)])
    for every in (16, 8, 4):
        yield Load(f"copies its prompt, one token in {every} changed", [continued.copying(4, every)])
    yield Load("copies pairs that go on otherwise", [continued.misleading(5)])
    if info.grammar_backend:
        yield from _structured(continued, info)
    for count in (4, 8, 16, 64):
        yield Load(f"copies its prompt, {count} streams", [continued.copying(10 + i, 0) for i in range(count)], count)
        yield Load(f"nothing to copy, {count} streams", [continued.unlike(10 + i) for i in range(count)], count)


def _structured(continued: Continued, info: EngineInfo) -> Iterator[Load]:
    """Arrays of records, whose keys come again and again."""
    grammar = grammar_of({"type": "json_schema", "json_schema": _schema()}, info)
    for count in (1, 64):
        requests = [_record(continued.unlike(100 + i), grammar, info) for i in range(count)]
        yield Load(f"JSON, {count} stream{'s' * (count > 1)}", requests, count)


def grammar_of(wanted: dict[str, Any], info: EngineInfo) -> Grammar:
    """The grammar of a format, as the engine takes it."""
    return structured.grammar(wanted, info, param="format")


def _record(request: GenerationRequest, grammar: Grammar, info: EngineInfo) -> GenerationRequest:
    return msgspec.structs.replace(request, grammar=grammar, stop_token_ids=info.eos_token_ids)


def _schema() -> dict[str, object]:
    """Schema of an array of records without free white space, so that a random model goes on to its end."""
    record = {
        "type": "object",
        "properties": {
            "identifier": {"type": "string", "pattern": "^[a-z]{8}$"},
            "description": {"type": "string", "pattern": "^[A-Za-z ]{24}$"},
            "quantity": {"type": "integer", "minimum": 100, "maximum": 999},
            "available": {"type": "boolean"},
        },
        "required": ["identifier", "description", "quantity", "available"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": _RECORDS, "maxItems": _RECORDS}
