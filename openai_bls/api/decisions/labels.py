"""Labels of a question as continuations of its prompt, and the answer that their log-probabilities make.

A label is a sequence of tokens. Its probability is that of an output which begins with it, and with no longer label
that begins with it in turn: of `1` and `10` an output `10` is the second. Such outputs exclude each other, so that the
probabilities can be scaled to the sum 1, and nothing need be known of how the model ends an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from openai_bls.api.decisions.schema import (
    Choice,
    ChoiceAnswer,
    LevelProbability,
    OptionProbability,
    Predicate,
    PredicateAnswer,
    Question,
    ScoreAnswer,
)

Tokens = tuple[int, ...]
NEVER = -math.inf


def prefixes(label: Tokens) -> list[Tokens]:
    """Beginnings of a label, from its first token to all of it."""
    return [label[: end + 1] for end in range(len(label))]


def read_tokens(labels: Sequence[Tokens], length: int) -> int:
    """Tokens that are read if each beginning of the labels is read once, with all before its last token.

    Args:
        labels: token ids of the labels.
        length: tokens of the prompt.
    """
    found = 0
    before: Tokens = ()
    for label in sorted(labels):
        pairs = enumerate(zip(before, label, strict=False))
        shared = next((at for at, (one, other) in pairs if one != other), min(len(before), len(label)))
        found += (len(label) - shared) * length + (len(label) * (len(label) - 1) - shared * (shared - 1)) // 2
        before = label
    return found


def logprobs(labels: Sequence[Tokens], of_last: Mapping[Tokens, float]) -> list[float]:
    """Log-probability of each label among outputs, those with a longer label left out.

    Args:
        labels: token ids of the labels, all different.
        of_last: log-probability of the last token of each label's beginnings, after the tokens before it.
    """
    begins = {label: sum(of_last[prefix] for prefix in prefixes(label)) for label in labels}
    longer: dict[Tokens, list[float]] = {}
    for label in labels:
        shorter = next((prefix for prefix in reversed(prefixes(label)[:-1]) if prefix in begins), None)
        if shorter is not None:
            longer.setdefault(shorter, []).append(begins[label])
    return [_without(begins[label], longer.get(label, [])) for label in labels]


def _without(whole: float, parts: Sequence[float]) -> float:
    """Log-probability of what is left of an event without events that are parts of it."""
    if whole == NEVER:
        return NEVER
    left = 1.0 - math.fsum(math.exp(part - whole) for part in parts)
    # Rounding may leave less than nothing.
    return whole + math.log(left) if left > 0 else NEVER


def probabilities(values: Sequence[float]) -> list[float]:
    """Log-probabilities as probabilities whose sum is 1; of nothing but impossible ones all are the same."""
    best = max(values)
    if best == NEVER:
        return [1 / len(values)] * len(values)
    weights = [math.exp(value - best) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def answer(question: Question, found: Sequence[float]) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    """The answer to a question, from the probabilities of its labels."""
    if isinstance(question, Predicate):
        return PredicateAnswer(question.name, found[0])
    best = max(range(len(found)), key=found.__getitem__)
    if isinstance(question, Choice):
        options = [OptionProbability(one.value, chance) for one, chance in zip(question.choices, found, strict=True)]
        even = 1 / len(found)
        confidence = max(0.0, (found[best] - even) / (1 - even))
        return ChoiceAnswer(question.name, options[best].value, options, confidence)
    levels = [
        LevelProbability(at, level.label, chance)
        for at, (level, chance) in enumerate(zip(question.levels, found, strict=True))
    ]
    score = math.fsum(at * chance for at, chance in enumerate(found))
    return ScoreAnswer(question.name, score, levels, _score_confidence(found, best))


def _score_confidence(found: Sequence[float], best: int) -> float:
    """1 less the mean distance from the likeliest level, as a share of the mean distance from the middle."""
    distance = math.fsum(chance * abs(at - best) for at, chance in enumerate(found))
    middle = (len(found) - 1) / 2
    even = math.fsum(abs(at - middle) for at in range(len(found))) / len(found)
    return max(0.0, 1 - distance / even)
