"""Questions as the model reads them, and the labels that it may answer with."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openai_bls.api.common.bodies import MAX_INPUTS
from openai_bls.api.decisions.schema import Choice, Predicate, Question
from openai_bls.core.errors import InvalidRequestError

YES_AND_NO = ("Yes", "No")
"""Labels of a predicate."""


def labels(question: Question) -> list[str]:
    """Labels of a question, in the order of its options.

    A boolean's is `true` or `false`. Where there is one, texts are in quotes, as JSON has them, so that the text
    `true` is another label.
    """
    if isinstance(question, Predicate):
        return [*YES_AND_NO]
    if not isinstance(question, Choice):
        return [level.label for level in question.levels]
    values = [option.value for option in question.choices]
    if not any(isinstance(value, bool) for value in values):
        return [str(value) for value in values]
    return [json.dumps(value, ensure_ascii=False) for value in values]


def place(question: Question, at: int, number: int) -> str:
    """Path in the body of option `number` of question `at`."""
    field = "choices[{}].value" if isinstance(question, Choice) else "levels[{}].label"
    return f"questions[{at}]." + field.format(number)


def text(question: Question) -> str:
    """Text that stands below the instructions of a question: its labels, and how to answer."""
    if isinstance(question, Predicate):
        return f"\nIs this true? Answer with {' or '.join(YES_AND_NO)} only."
    if isinstance(question, Choice):
        kind, descriptions = "options", [option.description for option in question.choices]
    else:
        kind, descriptions = (
            "levels, the lowest of which is the first",
            [level.description for level in question.levels],
        )
    named = zip(labels(question), descriptions, strict=True)
    lines = [f"- {label}: {description}" if description else f"- {label}" for label, description in named]
    return "\n".join(["", *lines, "", f"Answer with one of these {kind}, and with nothing else."])


def check_labels(questions: Sequence[Question]) -> None:
    """Refuse labels that are blank or the same, and too many of them.

    Raises:
        InvalidRequestError: `param` is the label's path.
    """
    count = 0
    for at, question in enumerate(questions):
        seen: dict[str, int] = {}
        for number, label in enumerate(labels(question)):
            where = place(question, at, number)
            if not label.strip():
                raise InvalidRequestError(f"'{where}' is blank.", param=where)
            if label in seen:
                other = place(question, at, seen[label])
                raise InvalidRequestError(f"'{where}' is the same as '{other}'.", param=where)
            seen[label] = number
        count += len(seen)
    if count > MAX_INPUTS:
        raise InvalidRequestError(
            f"'questions' has {count} labels; at most {MAX_INPUTS} are supported.", param="questions"
        )
