"""Whether answers are what was asked for, by what they say themselves; for `benchmarks.feature_cases`.

Random weights foretell no answer, and in bfloat16 not even the same request gives the same answer in a batch of another
size. So answers are held against their own log-probabilities, against another implementation of what they must match,
and against what a bias leaves no choice about. Each function returns a sentence, or raises `WrongError` with one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.asking import Answer
from openai_bls.core.engine_types import Logprobs, SamplingParams

_ROUNDING = 1e-4
"""Of log-probabilities in float32."""


class WrongError(Exception):
    """What an answer should not be; a sentence."""


def require(good: bool, sentence: str) -> None:
    """Raise `WrongError` with the sentence unless it is good."""
    if not good:
        raise WrongError(sentence)


def like_alone(answers: Sequence[Answer], traced: Sequence[Answer], tolerance: float) -> str:
    """Greedy answers from a batch, and those alone with log-probabilities: the first token that differs was as likely,
    up to `tolerance`."""
    gaps = []
    for answer, wanted in zip(answers, traced, strict=True):
        require(answer.reason == "length" and len(answer.tokens) == len(wanted.tokens), "an output has not its length")
        for i, token in enumerate(answer.tokens):
            if token != wanted.tokens[i]:
                found = wanted.logprobs
                known = dict(zip(found.top_token_ids[i], found.top_logprobs[i], strict=True))
                require(token in known, f"token {i} is {token}, which is none of the likeliest {len(known)} alone")
                gaps.append(found.top_logprobs[i][0] - known[token])
                break
    gap = max(gaps, default=0.0)
    require(gap <= tolerance, f"the first token that differs from the answer alone is {gap:.3f} less likely there")
    same = len(answers) - len(gaps)
    return f"{same} of {len(answers)} answers as alone" + (f", the others from ties up to {gap:.3f}" if gaps else "")


def matching(answers: Sequence[Answer], text: Callable[[Answer], str], check: Callable[[str], None]) -> str:
    """Outputs under a grammar: those that ended by themselves pass `check`."""
    ended = 0
    for answer in answers:
        if answer.logprobs.token_logprobs:
            well_formed(answer.logprobs, answer.tokens, len(answer.logprobs.top_logprobs[0]))
        if answer.reason == "stop":
            check(text(answer))
            ended += 1
    require(ended > 0, f"none of {len(answers)} outputs has ended, so nothing is shown")
    return f"{ended} of {len(answers)} outputs ended and match, such as {text_of_shortest(answers, text)}"


def text_of_shortest(answers: Sequence[Answer], text: Callable[[Answer], str]) -> str:
    """Of those that ended."""
    return min((text(answer) for answer in answers if answer.reason == "stop"), key=len)


def well_formed(found: Logprobs, tokens: Sequence[int], count: int) -> None:
    """Log-probabilities of `tokens` with the `count` likeliest of each place."""
    numbers = {len(found.token_logprobs), len(found.top_token_ids), len(found.top_logprobs), len(tokens)}
    require(len(numbers) == 1, f"there are log-probabilities of {sorted(numbers)} tokens")
    for i, (token, own) in enumerate(zip(tokens, found.token_logprobs, strict=True)):
        ids, values = found.top_token_ids[i], found.top_logprobs[i]
        require(len(set(ids)) == len(values) == count, f"place {i} has not {count} different tokens")
        require(all(map(math.isfinite, [own, *values])), f"place {i} has a log-probability that is no number")
        require(max([own, *values]) <= _ROUNDING, f"place {i} has a log-probability above 0")
        require(all(a >= b for a, b in itertools.pairwise(values)), f"place {i} does not descend: {values}")
        require(sum(map(math.exp, values)) <= 1 + _ROUNDING, f"the probabilities of place {i} add up to more than 1")
        best = dict(zip(ids, values, strict=True)).get(token)
        if best is not None:
            require(
                abs(best - own) <= _ROUNDING, f"place {i}: token {token} has {own} by itself and {best} in the list"
            )
        elif values:
            require(own <= values[-1] + _ROUNDING, f"place {i}: token {token} belongs in the list and is not there")


def greedy_logprobs(answers: Sequence[Answer], count: int, greedy: int) -> str:
    """The first `greedy` answers took the likeliest token at each place."""
    for number, answer in enumerate(answers):
        found = answer.logprobs
        well_formed(found, answer.tokens, count)
        if number < greedy:
            for i, own in enumerate(found.token_logprobs):
                require(own >= found.top_logprobs[i][0] - _ROUNDING, f"greedy token {i} is not the likeliest")
    return f"{sum(len(answer.tokens) for answer in answers)} places well formed, the greedy token is the likeliest"


def unchanged(before: Sequence[Answer], after: Sequence[Answer], what: str) -> str:
    """The same tokens."""
    different = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a.tokens != b.tokens]
    require(not different, f"answers {different} of {len(before)} {what} are others")
    return f"{len(before)} answers {what} are the same"


def explained(answers: Sequence[Answer], params: SamplingParams, count: int) -> str:
    """None of the `count` listed tokens has more than the chosen one after penalties, which changed a choice
    somewhere."""
    changed = places = 0
    for answer in answers:
        found = answer.logprobs
        well_formed(found, answer.tokens, count)
        counts: Counter[int] = Counter()

        def score(token: int, logprob: float, counts: Counter[int] = counts) -> float:
            held = counts[token]
            return logprob - (held > 0) * params.presence_penalty - held * params.frequency_penalty

        for i, token in enumerate(answer.tokens):
            own = score(token, found.token_logprobs[i])
            rivals = map(score, found.top_token_ids[i], found.top_logprobs[i])
            behind = max(rivals) - own
            require(behind <= _ROUNDING, f"token {i} is {behind:.3f} behind another after penalties")
            changed += found.token_logprobs[i] < found.top_logprobs[i][0] - _ROUNDING
            places += 1
            counts[token] += 1
    require(changed > 0, f"of {places} choices none was changed, so nothing is shown")
    return f"{changed} of {places} choices changed, all as the log-probabilities say"


def rarer(answers: Sequence[Answer], token: int) -> str:
    """The first answer is one token over and over; with penalties, the others are not."""
    most = [Counter(answer.tokens).most_common(1)[0][1] for answer in answers]
    total = len(answers[0].tokens)
    require(answers[0].tokens == [token] * total, "a token with a bias of 20 is not all of a greedy output")
    require(max(most[1:]) <= total // 2, f"the most frequent of {total} tokens comes {most} times")
    return f"the most frequent of {total} tokens comes {most[0]} times, with penalties {most[1:]}"


def biased(answers: Sequence[Answer], forced: int, kept_away: int) -> str:
    """The first answer is one token only; the second is without another."""
    require(set(answers[0].tokens) == {forced}, "+100 did not force its token")
    require(kept_away not in answers[1].tokens, "-100 did not keep its token away")
    return "+100 forces a token, -100 keeps the greedy one away"


def held_back(answers: Sequence[Answer], stop: int, least: int) -> str:
    """A stop token that is biased to come ends the first answer at once, the second after `least` tokens."""
    for answer, length in zip(answers, (0, least), strict=True):
        require(len(answer.tokens) == length, f"{len(answer.tokens)} tokens came, not {length}, before the stop token")
        require(stop not in answer.tokens, "the stop token was delivered")
        require(answer.reason == "stop" and answer.stop_token_id == stop, "the stop token did not end the output")
    return f"the stop token ends an output after 0 tokens, with min_tokens after {least}"


def forbidden(answers: Sequence[Answer], wanted: Sequence[Sequence[int]]) -> str:
    """Biases leave one output each."""
    for answer, tokens in zip(answers, wanted, strict=True):
        require(answer.tokens == list(tokens), f"{answer.tokens} came, not {list(tokens)}")
    return "words of 1, 2 and 3 tokens never come"


def seeded(answers: Sequence[Answer]) -> str:
    """The first two have one seed, the third another."""
    require(answers[0].tokens == answers[1].tokens, "the same seed gives another output")
    require(answers[0].tokens != answers[2].tokens, "another seed gives the same output")
    return "the same seed gives the same output, another seed another"


def prompt_seen(answer: Answer, prompt: Sequence[int], count: int) -> str:
    """Log-probabilities of a prompt."""
    found = answer.prompt_logprobs
    if found is None:
        raise WrongError("there are no log-probabilities of the prompt")
    well_formed(found, prompt[1:], count)
    return f"{len(prompt) - 1} of {len(prompt)} prompt tokens have log-probabilities"


def agreeing(answer: Answer, prompt: Sequence[int], count: int, generated: Answer, exact: bool) -> str:
    """The log-probabilities of a prompt that ends with an earlier output are those of that output."""
    said = prompt_seen(answer, prompt, count)
    assert answer.prompt_logprobs is not None
    wanted = generated.logprobs.token_logprobs
    gaps = [abs(a - b) for a, b in zip(answer.prompt_logprobs.token_logprobs[-len(wanted) :], wanted, strict=True)]
    mean, most = sum(gaps) / len(gaps), max(gaps)
    sentence = f"they differ from those of the same tokens generated by {mean:.4f} on average, {most:.4f} at most"
    require(most <= 0.001 if exact else mean <= 0.05 and most <= 0.25, sentence)
    return f"{said}; {sentence}"


def embedded(answers: Sequence[Answer], size: int) -> str:
    """Vectors of length 1."""
    for answer in answers:
        vector = answer.embedding or []
        require(len(vector) == size, f"an embedding has {len(vector)} numbers, not {size}")
        length = math.hypot(*vector)
        require(abs(length - 1) < 0.001, f"an embedding has length {length:.4f}")
        require(answer.reason == "stop" and not answer.tokens, "an embedding comes with tokens, or without an end")
    return f"embeddings of {size} numbers and length 1"


def embedded_twice(answers: Sequence[Answer], size: int) -> str:
    """The first two are of the same prompt, the others of another prompt and with other pooling."""
    said = embedded(answers, size)
    require(answers[0].embedding == answers[1].embedding, "the same prompt has another embedding")
    for answer in answers[2:]:
        require(answer.embedding != answers[0].embedding, "another prompt or pooling has the same embedding")
    return f"{said}, the same when asked for again"


def cached(answers: Sequence[Answer], length: int) -> str:
    """A prompt of `length` tokens twice."""
    first, again = (answer.cached_tokens for answer in answers)
    require(first == 0 and 0 < again <= length, f"of {length} tokens {first} were cached, then {again}")
    return f"of {length} prompt tokens {again} were there already the second time"


def schema_checker(kind: type, schema: object) -> Callable[[str], None]:
    """What raises `WrongError` at a text that is no `kind`, or no instance of `schema` (where `jsonschema`, a package
    for tests, is installed)."""
    try:
        import jsonschema
    except ImportError:
        jsonschema = None

    def check(text: str) -> None:
        try:
            msgspec.json.decode(text, type=kind)
            if jsonschema is not None:
                jsonschema.Draft202012Validator(schema).validate(msgspec.json.decode(text))
        except (msgspec.DecodeError, getattr(jsonschema, "ValidationError", msgspec.DecodeError)) as error:
            raise WrongError(f"{text!r} is not what the schema asks for: {str(error).splitlines()[0]}") from None

    return check
