"""What `benchmarks.features` asks of an engine to check it: most of it at once, in one batch, the rest in turn."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from benchmarks import feature_checks as checks
from benchmarks.asking import Answer, Asker
from benchmarks.feature_checks import WrongError
from benchmarks.random_checkpoint import text_ids
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, Grammar, SamplingParams
from openai_bls.output.detokenizer import factory
from openai_bls.output.structured import grammar

GREEDY = SamplingParams(temperature=0)
TOGETHER = 32
"""Requests in the batch, at least."""
_PROMPT_IDS = 1000  # ids that every vocabulary has
_SHORT = 20  # tokens of a prompt that fills no page, so that nothing of it is in the cache when it comes again
_LONG = 600  # and of one that fills some, however large they are
_PATTERN = r"(red|green|blue)-[0-9]{2,4}(, [a-f]{3})?"


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["a", "bc", None]
    count: Annotated[int, msgspec.Meta(ge=-5, le=120)]
    flags: Annotated[list[bool], msgspec.Meta(max_length=3)]


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    sevens: Annotated[int, msgspec.Meta(ge=0, le=1000, multiple_of=7)]
    name: Annotated[str, msgspec.Meta(pattern="^[A-Z]{2}-[0-9]{3}$")]


@dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    name: str
    good: bool
    said: str


@dataclass(frozen=True)
class Case:
    """Some requests, and what to make of their answers."""

    name: str
    requests: Sequence[GenerationRequest]
    look: Callable[[Sequence[Answer]], str]
    """Returns a sentence; raises `WrongError` with one."""


@dataclass(frozen=True)
class Subject:
    """The engine under test."""

    asker: Asker
    info: EngineInfo
    tokenizer: Path
    """Its folder."""
    hidden_size: int
    exact: bool
    """Arithmetic in float32; else in bfloat16."""

    def alone(self, request: GenerationRequest) -> Answer:
        """The answer to one request with nothing beside it."""
        [answer] = self.asker.ask([request])
        return answer

    def text(self, answer: Answer) -> str:
        """Of its tokens; raises `WrongError` if they make none."""
        token_bytes = factory.load(self.tokenizer).token_bytes
        try:
            return b"".join(map(token_bytes, answer.tokens)).decode()
        except UnicodeDecodeError:
            raise WrongError("an output is no UTF-8") from None


def run(subject: Subject) -> Iterator[Outcome]:
    """Do all checks; each is told as soon as it is done."""
    plain, most = [asked(prompt(i), 48) for i in range(4)], _most(subject)
    traced: list[Answer] = []
    before: list[Answer] = []

    def first(answers: Sequence[Answer]) -> str:
        before.extend(answers[: len(plain)])
        traced.extend(answers[len(plain) :])
        said = checks.greedy_logprobs(traced, most, len(plain))
        return f"{checks.unchanged(before, traced, 'with logprobs')}; {said}"

    requests = plain + [msgspec.structs.replace(request, logprobs=most) for request in plain]
    alone = one_by_one(subject, Case("plain, alone", requests, first))
    yield alone
    if not all(answer.tokens for answer in traced) or not traced:
        return  # nothing to compare with
    yield from all_at_once(subject, together(subject, traced))
    for case in in_turn(subject, traced):
        yield one_by_one(subject, case)
    again = Case("plain, after all this", plain, lambda after: checks.unchanged(before, after, "alone as before"))
    yield one_by_one(subject, again)


def one_by_one(subject: Subject, case: Case) -> Outcome:
    """Ask for one after another."""
    try:
        return judged(case, [subject.alone(request) for request in case.requests])
    except TimeoutError as error:
        return Outcome(case.name, False, str(error))


def all_at_once(subject: Subject, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Ask for everything in one batch, in a random order."""
    flat = [request for case in cases for request in case.requests]
    flat += [asked(prompt(100 + i), 48) for i in range(TOGETHER - len(flat))]
    order = random.Random(1).sample(range(len(flat)), len(flat))
    try:
        found = subject.asker.ask([flat[i] for i in order])
    except TimeoutError as error:
        yield Outcome("everything at once", False, str(error))
        return
    answers = dict(zip(order, found, strict=True))
    start = 0
    for case in cases:
        end = start + len(case.requests)
        yield judged(case, [answers[i] for i in range(start, end)])
        start = end


def judged(case: Case, answers: Sequence[Answer]) -> Outcome:
    """What `case` makes of the answers."""
    errors = [answer.error for answer in answers if answer.error is not None]
    try:
        if errors:
            raise WrongError(f"{len(errors)} of {len(answers)} requests ended with an error: {errors[0]}")
        return Outcome(case.name, True, case.look(answers))
    except WrongError as error:
        return Outcome(case.name, False, str(error))
    except Exception as error:  # an answer that has not even the form to be looked at; the other checks count, too
        return Outcome(case.name, False, f"{type(error).__name__}: {error}")


def prompt(number: int, length: int = _SHORT) -> list[int]:
    """A random prompt, another for each number."""
    return random.Random(number).choices(range(_PROMPT_IDS), k=length)


def asked(ids: list[int], max_tokens: int, sampling: SamplingParams = GREEDY, **more: Any) -> GenerationRequest:
    """Args: more: further fields of `GenerationRequest`."""
    return GenerationRequest(request_id=0, prompt_token_ids=ids, max_tokens=max_tokens, sampling=sampling, **more)


def _most(subject: Subject) -> int:
    return min(20, subject.info.max_logprobs)


def together(subject: Subject, traced: Sequence[Answer]) -> list[Case]:
    """What can be told from answers in one batch; `traced` are plain ones alone, with log-probabilities."""
    one, two, end = random.Random(2).sample(text_ids(), 3)
    first, most = traced[0].tokens[0], _most(subject)
    presence = SamplingParams(temperature=0, presence_penalty=2)
    frequency = SamplingParams(temperature=0, frequency_penalty=2)
    forced = SamplingParams(temperature=0, logit_bias={one: 50.0, two: 40.0})
    ending: dict[str, Any] = {"sampling": SamplingParams(logit_bias={end: 100.0}), "stop_token_ids": (end,)}

    def favoured(**penalty: Any) -> SamplingParams:
        return SamplingParams(temperature=0, logit_bias={one: 20.0}, **penalty)

    def looked_at(answers: Sequence[Answer]) -> str:
        seen = checks.prompt_seen(answers[0], prompt(47), 2)
        return f"{seen}; {checks.embedded(answers[1:], subject.hidden_size)}"

    return [
        Case(
            "plain, beside others",
            [asked(prompt(i), 48) for i in range(4)],
            lambda answers: checks.like_alone(answers, traced, 0.001 if subject.exact else 0.25),
        ),
        *grammar_cases(subject),
        Case(
            "logprobs",
            [asked(prompt(20 + i), 48, SamplingParams(temperature=float(i == 2)), logprobs=5) for i in range(3)],
            lambda answers: checks.greedy_logprobs(answers, 5, greedy=2),
        ),
        Case(
            "presence_penalty",
            [asked(prompt(30 + i), 128, presence, logprobs=most) for i in range(2)],
            lambda answers: checks.explained(answers, presence, most),
        ),
        Case(
            "frequency_penalty",
            [asked(prompt(32 + i), 128, frequency, logprobs=most) for i in range(2)],
            lambda answers: checks.explained(answers, frequency, most),
        ),
        Case(
            "penalties against repetition",
            [
                asked(prompt(40), 64, favoured()),
                asked(prompt(40), 64, favoured(frequency_penalty=2)),
                asked(prompt(40), 64, favoured(repetition_penalty=100)),
            ],
            lambda answers: checks.rarer(answers, one),
        ),
        Case(
            "logit_bias",
            [
                asked(prompt(41), 16, SamplingParams(logit_bias={one: 100.0})),
                asked(prompt(0), 16, SamplingParams(temperature=0, logit_bias={first: -100.0})),
            ],
            lambda answers: checks.biased(answers, one, first),
        ),
        Case(
            "min_tokens",
            [asked(prompt(42), 32, **ending), asked(prompt(43), 32, min_tokens=9, **ending)],
            lambda answers: checks.held_back(answers, end, 9),
        ),
        Case(
            "bad_words",
            [asked(prompt(44 + i), 12, forced, bad_words=((one,) * (i + 1),)) for i in range(3)],
            lambda answers: checks.forbidden(answers, [[two] * 12, [one, two] * 6, [one, one, two] * 4]),
        ),
        Case(
            "prompts looked at between steps",
            [asked(prompt(47), 8, prompt_logprobs=2), asked(prompt(48), 0, pooling="mean")],
            looked_at,
        ),
    ]


def grammar_cases(subject: Subject) -> list[Case]:
    """JSON and a regular expression, sampled at temperature 1, so that the grammar does the work."""
    found = []
    for first, name, kind in ((50, "JSON schema", _Record), (60, "JSON schema with multipleOf and pattern", _Strict)):
        schema = msgspec.json.schema(kind)
        wanted = {"type": "json_schema", "json_schema": schema}
        found.append(_grammar_case(subject, name, wanted, checks.schema_checker(kind, schema), first))
    found.append(_grammar_case(subject, "regex", {"type": "regex", "pattern": _PATTERN}, _check_pattern, 70))
    return found


def _grammar_case(
    subject: Subject, name: str, wanted: dict[str, Any], check: Callable[[str], None], first: int
) -> Case:
    def missing(_: Sequence[Answer]) -> str:
        raise WrongError("this engine has no grammars")

    if not subject.info.grammar_backend:
        return Case(name, [], missing)
    more: dict[str, Any] = {"grammar": grammar_of(wanted, subject.info), "stop_token_ids": subject.info.eos_token_ids}
    odd = SamplingParams(top_p=0.9, frequency_penalty=0.5, seed=first)
    requests = [asked(prompt(first + i), 128, SamplingParams(), **more) for i in range(3)]
    requests.append(asked(prompt(first + 3), 128, odd, logprobs=2, **more))
    return Case(name, requests, lambda answers: checks.matching(answers, subject.text, check))


def grammar_of(wanted: dict[str, Any], info: EngineInfo) -> Grammar:
    """The grammar of a format, as the engine takes it."""
    return grammar(wanted, info, param="format")


def _check_pattern(text: str) -> None:
    checks.require(re.fullmatch(_PATTERN, text) is not None, f"{text!r} does not match {_PATTERN}")


def in_turn(subject: Subject, traced: Sequence[Answer]) -> list[Case]:
    """What is asked one request after another."""
    drawn = [SamplingParams(seed=seed, top_p=0.95) for seed in (1234, 1234, 4321)]
    size = subject.hidden_size
    known = prompt(0) + traced[0].tokens
    return [
        Case("seed", [asked(prompt(5), 48, sampling) for sampling in drawn], checks.seeded),
        Case(
            "prompt_logprobs",
            [asked(known, 1, prompt_logprobs=5)],
            lambda answers: checks.agreeing(answers[0], known, 5, traced[0], subject.exact),
        ),
        Case(
            "embeddings",
            [
                asked(prompt(number), 0, pooling=pooling)
                for number, pooling in ((6, "last"), (6, "last"), (7, "last"), (6, "mean"))
            ],
            lambda answers: checks.embedded_twice(answers, size),
        ),
        Case("cached_tokens", [asked(prompt(8, _LONG), 4)] * 2, lambda answers: checks.cached(answers, _LONG)),
    ]
