"""The checks of the engine's features pass on the engine and fail where one is left out; the costs add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import feature_cases, feature_checks, feature_costs, features
from benchmarks.asking import Answer, Asker
from benchmarks.feature_cases import Case, Outcome, Subject, asked
from benchmarks.feature_checks import WrongError
from benchmarks.feature_costs import Costs, Feature, group_rates, price
from openai_bls.core.engine import Engine
from openai_bls.core.engine_types import GenerationRequest, Grammar, Logprobs, SamplingParams, TokenDelta
from openai_bls.engines.registry import create_engine

Change = Callable[[GenerationRequest], GenerationRequest]


class Changed:
    """An engine that is asked for something else."""

    def __init__(self, engine: Engine, change: Change) -> None:
        self.engine = engine
        self.change = change

    def submit(self, request: GenerationRequest) -> None:
        self.engine.submit(self.change(request))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    features.prepare(folder, "tiny", 64, "cpu")
    return folder


@pytest.fixture(scope="module")
def engine_and_asker(work: Path) -> Iterator[tuple[Engine, Asker]]:
    asker = Asker()
    engine = create_engine(work / "features-repository" / "tensorrt_llm" / "1", asker.on_step, {"device": "cpu"})
    yield engine, asker
    engine.close()


@pytest.fixture
def subject(engine_and_asker: tuple[Engine, Asker], work: Path) -> Subject:
    engine, asker = engine_and_asker
    asker.engine = engine
    tokenizer = work / "features-repository" / "tensorrt_llm" / "1" / "tokenizer"
    return Subject(asker, engine.info, tokenizer, hidden_size=64, exact=True)


@pytest.fixture(scope="module")
def traced(engine_and_asker: tuple[Engine, Asker]) -> list[Answer]:
    engine, asker = engine_and_asker
    asker.engine = engine
    return [asker.ask([asked(feature_cases.prompt(i), 48, logprobs=20)])[0] for i in range(4)]


def outcomes(subject: Subject, traced: list[Answer], names: set[str]) -> dict[str, Outcome]:
    """Of the cases named, asked for together or in turn as by the command."""
    cases = [case for case in feature_cases.together(subject, traced) if case.name in names]
    found = list(feature_cases.all_at_once(subject, cases))
    for case in feature_cases.in_turn(subject, traced):
        if case.name in names:
            found.append(feature_cases.one_by_one(subject, case))
    assert {one.name for one in found} == names
    return {one.name: one for one in found}


def test_the_command(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--shape", "tiny", "--sequences", "1,2", "--tokens", "2", "--rounds", "1", "--variant", "cpu:device=cpu"]
    assert features.main([*given, "--work", str(work), "--out", str(tmp_path)]) == 0
    found = msgspec.json.decode((tmp_path / "features.json").read_bytes())
    assert [one["name"] for one in found["checks"] if not one["good"]] == []
    assert len(found["checks"]) > 15
    rates = found["costs"]["rates"]
    assert {name for name, by_count in rates.items() if set(by_count) == {"1", "2"}} >= {
        "plain", "logprobs 5", "frequency_penalty", "JSON"
    }  # fmt: skip
    assert set(rates["half JSON"]) == set(rates["plain beside JSON"]) == {"2"}
    # Halves are measured while both run, which two tokens each may not do.
    halves = {"half JSON", "plain beside JSON"}
    assert all(rate > 0 for name in rates.keys() - halves for measured in rates[name].values() for rate in measured)
    assert (tmp_path / "features.md").read_text(encoding="utf-8") in capsys.readouterr().out


def sampling(**more: Any) -> Change:
    """Other sampling, of requests that have set any of it."""

    def change(request: GenerationRequest) -> GenerationRequest:
        return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, **more))

    return change


def fields(**more: Any) -> Change:
    """Other fields, of requests that have set any of them."""

    def change(request: GenerationRequest) -> GenerationRequest:
        is_set = any(getattr(request, name) for name in more)
        return msgspec.structs.replace(request, **more) if is_set else request

    return change


def longer(request: GenerationRequest) -> GenerationRequest:
    """Some plain answers of another prompt."""
    return msgspec.structs.replace(request, prompt_token_ids=[*request.prompt_token_ids, request.request_id % 2])


GRAMMARS = {"JSON schema", "JSON schema with multipleOf and pattern", "regex"}
FAULTS: list[tuple[str, Change, set[str]]] = [
    ("presence_penalty", sampling(presence_penalty=0.0), {"presence_penalty"}),
    ("frequency_penalty", sampling(frequency_penalty=0.0), {"frequency_penalty", "penalties against repetition"}),
    ("repetition_penalty", sampling(repetition_penalty=1.0), {"penalties against repetition"}),
    ("logit_bias", sampling(logit_bias={}), {"logit_bias", "min_tokens", "bad_words", "penalties against repetition"}),
    ("seed", sampling(seed=None), {"seed"}),
    ("one seed", sampling(seed=1), {"seed"}),
    ("temperature", sampling(temperature=1.0, seed=3), {"plain, beside others", "logprobs", "presence_penalty"}),
    ("prompt", longer, {"plain, beside others", "prompts looked at between steps", "embeddings"}),
    ("min_tokens", fields(min_tokens=0), {"min_tokens"}),
    ("stop tokens", fields(stop_token_ids=()), {"min_tokens"}),
    ("bad_words", fields(bad_words=()), {"bad_words"}),
    ("logprobs", fields(logprobs=None), {"logprobs", "presence_penalty", "frequency_penalty"}),
    ("fewer logprobs", fields(logprobs=1), {"logprobs"}),
    ("prompt_logprobs", fields(prompt_logprobs=None), {"prompt_logprobs", "prompts looked at between steps"}),
    ("pooling", fields(pooling="last"), {"embeddings"}),
    ("grammar", fields(grammar=None), GRAMMARS),
    ("another grammar", fields(grammar=Grammar("regex", '[{]"[ks]|rod-9876')), GRAMMARS),
    ("a grammar that is none", fields(grammar=Grammar("regex", "(")), GRAMMARS),
]


@pytest.mark.parametrize(("change", "names"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_what_is_left_out_is_noticed(
    subject: Subject, traced: list[Answer], change: Change, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cases, "TOGETHER", 0)
    assert all(one.good for one in outcomes(subject, traced, names).values())
    assert subject.asker.engine is not None
    monkeypatch.setattr(subject.asker, "engine", Changed(subject.asker.engine, change))
    assert [one.said for one in outcomes(subject, traced, names).values() if one.good] == []


def answer(tokens: list[int], values: list[list[float]], ids: list[list[int]], own: list[float]) -> Answer:
    return Answer(0.0, tokens, [1.0] * len(tokens), Logprobs(own, ids, values), reason="length")


@pytest.mark.parametrize(
    ("own", "values", "ids", "says"),
    [
        (-0.7, [-0.7, -1.2], [5, 6], None),
        (-1.2, [-0.7, -1.2], [6, 5], None),
        (-2.0, [-0.7, -1.2], [6, 7], None),
        (-0.7, [-0.7, -0.9], [5, 6], None),
        (-0.7, [-0.7, -0.6], [5, 6], "descend"),
        (0.1, [0.1, -3.0], [5, 6], "above 0"),
        (-0.1, [-0.1, -1.0], [5, 6], "more than 1"),
        (-0.7, [-0.7], [5], "2 different"),
        (-0.7, [-0.7, -0.9], [5, 5], "2 different"),
        (-0.8, [-0.7, -0.9], [5, 6], "by itself"),
        (-0.7, [-0.8, -0.9], [6, 7], "belongs in"),
        (math.nan, [-0.8, -0.9], [5, 6], "no number"),
    ],
)
def test_well_formed_logprobs(own: float, values: list[float], ids: list[int], says: str | None) -> None:
    found = Logprobs([own], [ids], [values])
    if says is None:
        feature_checks.well_formed(found, [5], 2)
    else:
        with pytest.raises(WrongError, match=says):
            feature_checks.well_formed(found, [5], 2)


def test_greedy_tokens_are_the_likeliest() -> None:
    good = answer([5, 5], [[-1.0], [-1.0]], [[5], [6]], [-1.0, -1.0])  # one of two that tie
    bad = answer([5], [[-1.0]], [[6]], [-1.5])
    assert feature_checks.greedy_logprobs([good, bad], 1, greedy=1)
    with pytest.raises(WrongError, match="not the likeliest"):
        feature_checks.greedy_logprobs([good, bad], 1, greedy=2)


def test_answers_may_part_where_tokens_tie() -> None:
    alone = answer([5, 6], [[-1.0, -1.2], [-1.0, -1.2]], [[5, 7], [6, 7]], [-1.0, -1.0])
    assert "1 of 2" in feature_checks.like_alone([Answer(0.0, [5, 7], reason="length"), alone], [alone] * 2, 0.25)
    for tokens, reason, slack, says in (
        ([5, 7], "length", 0.1, "less likely"),
        ([5, 8], "length", 0.25, "none of the likeliest"),
        ([5], "stop", 0.25, "length"),
    ):
        with pytest.raises(WrongError, match=says):
            feature_checks.like_alone([Answer(0.0, tokens, reason=reason)], [alone], slack)
    with pytest.raises(WrongError, match="nothing is shown"):
        feature_checks.explained([alone], SamplingParams(presence_penalty=1), 2)


def test_cached_tokens_and_embeddings() -> None:
    for first, again, good in ((0, 64, True), (0, 0, False), (64, 64, False), (0, 101, False)):
        answers = [Answer(0.0, cached_tokens=n) for n in (first, again)]
        case = Case("cached", [], lambda answers: feature_checks.cached(answers, 100))
        assert feature_cases.judged(case, answers).good is good
    for vector, size, says in (([0.6, -0.8], 2, ""), ([0.6, 0.9], 2, "length"), ([0.6, 0.8], 3, "not 3")):
        case = Case("embedded", [], partial(feature_checks.embedded, size=size))
        outcome = feature_cases.judged(case, [Answer(0.0, embedding=vector, reason="stop")])
        assert outcome.good is (not says)
        assert says in outcome.said


def test_without_plain_answers_nothing_is_compared(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert subject.asker.engine is not None
    unknown = Changed(subject.asker.engine, lambda one: msgspec.structs.replace(one, prompt_token_ids=[1 << 20]))
    monkeypatch.setattr(subject.asker, "engine", unknown)
    [outcome] = feature_cases.run(subject)
    assert not outcome.good
    assert "8 of 8 requests ended with an error: prompt_token_ids" in outcome.said


def test_an_attention_that_is_not_put_back_is_noticed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pass over a prompt the engine is another."""
    passed: list[GenerationRequest] = []

    def change(request: GenerationRequest) -> GenerationRequest:
        if request.pooling is not None and request.prompt_token_ids == feature_cases.prompt(7):
            passed.append(request)
        return longer(request) if passed and len(request.prompt_token_ids) == 20 else request

    # Of the checks only the one that passes over that prompt, and the one that looks again.
    in_turn = feature_cases.in_turn
    monkeypatch.setattr(feature_cases, "together", lambda *_: [])
    monkeypatch.setattr(feature_cases, "TOGETHER", 1)
    monkeypatch.setattr(feature_cases, "in_turn", lambda *a: [one for one in in_turn(*a) if one.name == "embeddings"])
    assert subject.asker.engine is not None
    monkeypatch.setattr(subject.asker, "engine", Changed(subject.asker.engine, change))
    found = list(feature_cases.run(subject))
    assert passed
    assert [(one.name, one.good) for one in found] == [
        ("plain, alone", True),
        ("embeddings", True),
        ("plain, after all this", False),
    ]


def test_an_error_is_a_failed_check(subject: Subject) -> None:
    case = Case("bad", [asked([1] * 3000, 1)], lambda answers: "fine")
    [outcome] = feature_cases.all_at_once(subject, [case])
    assert not outcome.good
    assert "context length" in outcome.said


def test_waiting_has_an_end(tmp_path: Path) -> None:
    asker = Asker()
    engine = asker.engine = create_engine(tmp_path, asker.on_step, {"engine": "null", "null_step_delay_ms": "20"})
    try:
        with pytest.raises(TimeoutError, match="1 of 2"):
            asker.ask([asked([1], 100_000 // 20), asked([1], 1)], 0.3)
        [after] = asker.ask([asked([1], 3)])
        assert (len(after.tokens), len(after.times), after.reason) == (3, 3, "length")
        assert after.asked < after.times[0] <= after.times[-1] == after.ended
    finally:
        engine.close()


def timed(*times: float) -> Answer:
    return Answer(10.0, list(range(len(times))), list(times), ended=times[-1])


def test_rates_are_of_the_time_in_which_all_groups_run() -> None:
    assert group_rates([[timed(11, 12), timed(11, 14)]]) == [1.0]
    assert group_rates([[timed(11, 12), timed(11, 12)], [timed(11, 12, 13, 14)]]) == [2.0, 1.0]


def test_rounds_are_dropped_and_rows_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_costs, "measure", lambda _, groups, *more: [1.0] * len(groups))
    costs, written = Costs(), list[int]()
    chosen = [Feature("plain"), Feature("logprobs", more={"logprobs": 1})]
    price(Asker(), chosen, (1, 3), 5, 4, -math.inf, costs, lambda: written.append(costs.rounds))
    assert (costs.rounds, costs.left_out, len(written)) == (1, 3, 4)
    assert {name: set(by_count) for name, by_count in costs.rates.items()} == {"plain": {1, 3}, "logprobs": {1, 3}}


def test_a_measurement_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Asker, groups: list[tuple[Feature, int]], tokens: int, seed: int) -> list[float]:
        if tokens > 4 and groups[0][0].name == "bad":
            raise RuntimeError("no such thing")
        return [100.0 * count for _, count in groups]

    monkeypatch.setattr(feature_costs, "measure", fail)
    costs = Costs()
    chosen = [Feature("plain"), Feature("bad"), Feature("grammar", more={"grammar": object()})]
    price(Asker(), chosen, (1, 4), 5, 2, math.inf, costs, lambda: None)
    assert costs.errors == [f"bad at {count}: no such thing" for count in (1, 4, 1, 4)]
    results = features.Results({"versions": {}}, (1, 4), [Outcome("one", True, "said")], costs=costs)
    assert not results.good
    costs.add("bad", 4, 100.0)
    assert features.cost_rows(costs, (1, 4)) == [
        ["plain", "100", "100%", "400", "100%"],
        ["grammar", "100", "100%", "400", "100%"],
        ["half grammar", "n/a", "n/a", "200", "100%"],
        ["plain beside grammar", "n/a", "n/a", "200", "100%"],
        ["bad", "n/a", "n/a", "100", "25%"],
    ]


def test_answers_are_put_together() -> None:
    found = Answer(0.0)
    found.take(TokenDelta(1, [4, 5], logprobs=Logprobs([-1, -2], [[], []], [[], []]), cached_tokens=7), 1.0)
    found.take(TokenDelta(1, [6], "stop", stop_token_id=9, logprobs=Logprobs([-3], [[]], [[]])), 2.0)
    assert (found.tokens, found.times) == ([4, 5, 6], [1.0, 1.0, 2.0])
    assert found.logprobs.token_logprobs == [-1, -2, -3]
    assert (found.reason, found.stop_token_id, found.cached_tokens, found.ended) == ("stop", 9, 7, 2.0)
