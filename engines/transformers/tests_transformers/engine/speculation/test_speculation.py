"""Speculative decoding: requests are answered as without it, token by token, in fewer steps."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch

from openai_bls.core.engine_types import GenerationRequest, Grammar, Logprobs, SamplingParams, TokenDelta
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.random_bits import random_bits
from openai_bls_transformers.speculation import speculation
from openai_bls_transformers.speculation.draft_budget import DraftBudget
from openai_bls_transformers.speculation.drafter import Drafter
from openai_bls_transformers.speculation.speculation import Speculator
from tests.engine_contract.support import GREEDY, Recorder, request, run_all
from tests_transformers.engine.arrivals import run_together, submit_together
from tests_transformers.engine.engine.test_constraints import demo_dir
from tests_transformers.engine.engine.test_engine import PROMPTS
from tests_transformers.engine.engine.test_engine_features import EVERYTHING
from tests_transformers.engine.overlapping import overlap, ways
from tests_transformers.engine.restarts import counted_restarts
from tests_transformers.engine.runners.test_scheduler import DRAWN as SAMPLED
from tests_transformers.engine.runners.test_scheduler import add, decoding, make_io
from tests_transformers.engine.speculation.test_drafter import CONFIG, unlimited

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory

__all__ = ["demo_dir", "unlimited", "ways"]  # fixtures

COUNT = 24
DRAWN = SamplingParams(temperature=0.8, top_p=0.95, top_k=50, min_p=0.01, seed=7)
PROMPT = PROMPTS[5]


def speculating(start: EngineFactory, **options: Any) -> tuple[Any, Recorder]:
    return start(speculative_method="ngram", **options)


def with_prediction(one: GenerationRequest, tokens: Sequence[int], wrong_at: Sequence[int] = ()) -> GenerationRequest:
    """The request with `tokens` as its prediction, of which some are others."""
    prediction = tuple(token ^ 1 if i in wrong_at else token for i, token in enumerate(tokens))
    return msgspec.structs.replace(one, prediction=prediction)


class Answer(NamedTuple):
    """All that a client is told, however it comes in pieces."""

    tokens: list[int]
    end: TokenDelta
    top_token_ids: list[list[int]]
    logprobs: list[float]


def answers(recorder: Recorder, requests: Sequence[GenerationRequest]) -> list[Answer]:
    found = []
    for one in requests:
        left_out: dict[str, Any] = {"token_ids": [], "logprobs": None, "queue_s": None, "cached_tokens": 0}
        end = msgspec.structs.replace(recorder.ends[one.request_id], predicted_tokens=0, **left_out)
        logprobs = Logprobs([], [], []) if one.logprobs is None else recorder.logprobs(one.request_id)
        found.append(Answer(recorder.tokens[one.request_id], end, logprobs.top_token_ids, logprobs.token_logprobs))
    return found


def check(recorder: Recorder, requests: Sequence[GenerationRequest], wanted: Sequence[Answer]) -> None:
    for found, answer in zip(answers(recorder, requests), wanted, strict=True):
        assert found[:3] == answer[:3]
        assert found.logprobs == pytest.approx(answer.logprobs, abs=1e-3)


def plain(start: EngineFactory, requests: Sequence[GenerationRequest], **options: Any) -> list[Answer]:
    engine, recorder = start(**options)
    run_all(engine, recorder, requests)
    return answers(recorder, requests)


def accepted(engine: Any) -> tuple[int, int]:
    stats = engine.stats()
    return stats.draft_tokens, stats.accepted_draft_tokens


def varied(usual: Sequence[int]) -> list[GenerationRequest]:
    """Requests with all that acts on single rows; `usual` is the greedy output of `PROMPT`."""
    cases: list[dict[str, Any]] = [
        {},
        {"sampling": DRAWN},
        {"sampling": EVERYTHING, "logprobs": 3},
        {"sampling": SamplingParams(temperature=0, repetition_penalty=1.3, frequency_penalty=0.5), "logprobs": 0},
        {"bad_words": ((usual[0],), (usual[2], usual[3]), (usual[4], usual[5], usual[6]))},
        {"stop_token_ids": (usual[7],)},
        {"stop_token_ids": (usual[7],), "min_tokens": 12},
        {"stop_words": (tuple(usual[9:11]),)},
        {"stop_words": ((usual[1],),), "min_tokens": 6, "logprobs": 2},
    ]
    cases += [{"max_tokens": count} for count in range(1, 12)]
    return [request(i, **{"prompt": PROMPT, "max_tokens": COUNT, **case}) for i, case in enumerate(cases)]


@pytest.mark.usefixtures("ways")
def test_answers_do_not_depend_on_drafts(start: EngineFactory) -> None:
    usual = plain(start, [request(0, prompt=PROMPT, max_tokens=COUNT)])[0].tokens
    requests = varied(usual)
    wanted = plain(start, requests)
    engine, recorder = speculating(start)
    # Some go on where the answer ends.
    full = [
        with_prediction(one, [*answer.tokens, *usual[len(answer.tokens) :]])
        for one, answer in zip(requests, wanted, strict=True)
    ]
    for one, answer in zip(full, wanted, strict=True):  # alone
        run_all(engine, recorder, [one])
        check(recorder, [one], [answer])
        predicted = sum(delta.predicted_tokens for delta in recorder.deltas(one.request_id))
        assert predicted == len(answer.tokens)
    drafted, right = accepted(engine)
    assert right > drafted * 0.8 > 50
    recorder.steps.clear()
    recorder.forget(range(len(requests)))
    # Together, wrong in some places, up to what the batch may be.
    for first in range(0, len(requests), 7):
        group = [
            with_prediction(one, answer.tokens, wrong_at=(3, 4, 9 + i, 17))
            for i, (one, answer) in enumerate(zip(requests[first : first + 7], wanted[first : first + 7], strict=True))
        ]
        run_all(engine, recorder, group)
        check(recorder, group, wanted[first : first + 7])
    assert 0 < accepted(engine)[1] - right < accepted(engine)[0] - drafted


@pytest.mark.usefixtures("ways")
def test_a_draft_that_nobody_waited_for(start: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step is in flight, nothing is drafted, whatever was expected before."""
    requests = [request(i, prompt=PROMPT, max_tokens=COUNT, sampling=EVERYTHING, logprobs=1) for i in range(2)]
    wanted = plain(start, requests)
    engine, recorder = speculating(start)
    monkeypatch.setattr(Drafter, "will_draft", property(lambda _: False))
    asked = [with_prediction(one, answer.tokens) for one, answer in zip(requests, wanted, strict=True)]
    run_all(engine, recorder, asked)
    check(recorder, asked, wanted)


@pytest.mark.usefixtures("ways")
def test_fewer_steps(start: EngineFactory) -> None:
    one = request(0, prompt=PROMPT, max_tokens=100)
    tokens = plain(start, [one])[0].tokens
    engine, recorder = speculating(start)
    steps = engine.stats().steps
    run_all(engine, recorder, [with_prediction(one, tokens)])
    assert recorder.tokens[0] == tokens
    assert engine.stats().steps - steps < 20
    assert max(len(delta.token_ids) for delta in recorder.deltas(0)) == 9


def test_a_larger_batch_drafts_nothing(start: EngineFactory) -> None:
    requests = [request(i, prompt=PROMPT, max_tokens=COUNT) for i in range(3)]
    tokens = plain(start, requests[:1])[0].tokens
    engine, recorder = speculating(start, speculative_disable_by_batch_size="2")
    before = accepted(engine)
    # Endless beside them, so that no step has fewer.
    endless = [request(i, max_tokens=400) for i in (10, 11)]
    submit_together(engine, [*endless, *(with_prediction(one, tokens) for one in requests)])
    recorder.wait_end(*range(3))
    assert [recorder.tokens[i] for i in range(3)] == [tokens] * 3
    assert accepted(engine) == before
    for i in (10, 11):
        engine.cancel(i)
    recorder.wait_end(10, 11)


@pytest.mark.usefixtures("ways")
def test_sequences_that_are_started_again(start: EngineFactory) -> None:
    """Pages run out while drafts are made; nothing of a rejected token is found by its content later."""
    options = {"max_tokens_in_kv_cache": "512"}
    sampling = SamplingParams(temperature=0, repetition_penalty=1.1, frequency_penalty=0.3)
    requests = [
        request(i, prompt=PROMPTS[10][: 90 + i], max_tokens=110, sampling=sampling, logprobs=2) for i in range(6)
    ]
    wanted = plain(start, requests)
    engine, recorder = speculating(start, **options)
    predicted = [
        with_prediction(one, answer.tokens, wrong_at=range(i, 110, 9 + i))
        for i, (one, answer) in enumerate(zip(requests, wanted, strict=True))
    ]
    with counted_restarts(engine) as restarts:
        run_together(engine, recorder, predicted)
    assert restarts, "nothing was started again"
    check(recorder, requests, wanted)
    recorder.steps.clear()
    recorder.forget(range(6))
    # Prompts that are these sequences up to somewhere, whose pages are shared now.
    further = [
        request(20 + i, prompt=[*one.prompt_token_ids, *answer.tokens[:60]], max_tokens=8)
        for i, (one, answer) in enumerate(zip(requests, wanted, strict=True))
    ]
    run_all(engine, recorder, further)
    assert sum(recorder.deltas(one.request_id)[0].cached_tokens for one in further) > 0
    check(recorder, further, plain(start, further, prefix_sharing="false"))


def test_grammars_at_every_row(start: EngineFactory, demo_dir: Path) -> None:
    sizes = {"type": "array", "items": {"enum": [10, 20]}}
    properties = {"name": {"type": "string", "maxLength": 12}, "sizes": sizes}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    grammars = [
        Grammar("json_schema", json.dumps(schema)),
        Grammar("regex", "(ab|cd){3,9}x"),
        Grammar("regex", "[a-f]{20}"),
    ]
    requests = [
        request(
            2 * i + j, prompt=(40, 41, 42), max_tokens=60, grammar=grammar, sampling=sampling, stop_token_ids=(0, 1, 2)
        )
        for i, grammar in enumerate(grammars)
        for j, sampling in enumerate((GREEDY, DRAWN))
    ]
    wanted = plain(start, requests, folder=demo_dir)
    assert any(answer.end.finish_reason == "stop" for answer in wanted)
    engine, recorder = speculating(start, folder=demo_dir)
    drafts = accepted(engine)
    for wrong in ((), (2, 7)):
        predicted = [with_prediction(one, answer.tokens, wrong) for one, answer in zip(requests, wanted, strict=True)]
        run_all(engine, recorder, predicted)
        check(recorder, requests, wanted)
        recorder.forget(range(len(requests)))
        assert accepted(engine)[1] > drafts[1]
        drafts = accepted(engine)


def test_what_a_grammar_forces_is_drafted(start: EngineFactory, demo_dir: Path) -> None:
    """Whatever else is: guesses that it forbids give way, and pauses after wrong ones have nothing to do with it."""
    text = "(yes|no), the answer is [0-9]{2} and not [a-z]{4}, as it was said before"
    one = request(
        0, prompt=(40, 41, 42), max_tokens=90, grammar=Grammar("regex", text), stop_token_ids=(0, 1, 2), logprobs=1
    )
    requests = [one, msgspec.structs.replace(one, request_id=1, sampling=DRAWN)]
    wanted = plain(start, requests, folder=demo_dir)
    engine, recorder = speculating(start, folder=demo_dir)
    total = sum(len(answer.tokens) for answer in wanted)
    for prediction in ((), (50, 51, 52, 53) * 20):
        before, steps = accepted(engine)[1], engine.stats().steps
        for each in requests:
            run_all(engine, recorder, [msgspec.structs.replace(each, prediction=prediction)])
        check(recorder, requests, wanted)
        recorder.steps.clear()
        recorder.forget(range(2))
        # The demo model spells some of it by other tokens than the longest.
        assert accepted(engine)[1] - before > total * 0.4
        assert engine.stats().steps - steps < total * 0.6


def test_drafts_that_come_and_go(start: EngineFactory, demo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of every kind come and are cancelled while pages run out, and whether there are drafts is a toss-up."""
    overlap(monkeypatch)
    source = random.Random(0)
    grammars = (Grammar("regex", "[a-f]{20}"), Grammar("regex", "(yes|no), the answer is [0-9]{2} and not [a-z]{4}"))
    kinds: list[dict[str, Any]] = [{}, {"sampling": DRAWN}, {"sampling": EVERYTHING, "logprobs": 2}]
    kinds += [{"grammar": grammar, "stop_token_ids": (0, 1, 2)} for grammar in grammars]
    requests = [
        request(i, prompt=source.choices(range(40, 300), k=source.randrange(40, 100)), max_tokens=50, **kind)
        for i, kind in enumerate(kinds * 2)
    ]
    wanted = plain(start, requests, folder=demo_dir)
    engine, recorder = speculating(start, folder=demo_dir, max_tokens_in_kv_cache="512", max_num_tokens="40")
    monkeypatch.setattr(DraftBudget, "is_overdrawn", property(lambda _: source.random() < 0.6))
    before = accepted(engine)
    with counted_restarts(engine) as restarts:
        asked = []
        for one, answer in zip(requests, wanted, strict=True):
            tokens = [token ^ (source.random() < 0.1) for token in answer.tokens]
            asked.append(msgspec.structs.replace(one, prediction=tuple(tokens)))
        submit_together(engine, asked)
        cancelled = source.sample(range(len(requests)), 3)
        for i in cancelled:
            recorder.wait_tokens(i, source.randrange(1, 6))
            engine.cancel(i)
        recorder.wait_end(*range(len(requests)))
    assert restarts, "nothing was started again"
    whole = [i for i in range(len(requests)) if i not in cancelled]
    check(recorder, [requests[i] for i in whole], [wanted[i] for i in whole])
    for i in cancelled:
        assert recorder.tokens[i] == wanted[i].tokens[: len(recorder.tokens[i])]
    assert accepted(engine)[1] - before[1] > 20


def test_what_cannot_have_drafts_is_refused_by_name(start: EngineFactory) -> None:
    with pytest.raises(EngineLoadError, match="runner continuous_batching"):
        speculating(start, runner="dynamic_cache")
    with pytest.raises(EngineLoadError, match=r"prompt_lookup_min is 5, .*prompt_lookup_max 4"):
        speculating(start, prompt_lookup_min="5")
    sliding = SimpleNamespace(layer_types=["full_attention", "sliding_attention"])
    config = SimpleNamespace(get_text_config=lambda decoder: sliding)
    for paged in (False, True):
        reason = speculation.refusal(config, "continuous_batching", paged=paged, images=False)
        assert (reason is None) is paged


def test_a_prediction_without_speculation_is_refused(start: EngineFactory) -> None:
    engine, recorder = start()
    engine.submit(request(0, prediction=(1, 2)))
    recorder.wait_end(0)
    assert recorder.ends[0].invalid
    assert (recorder.ends[0].error or "").startswith("prediction ")


@pytest.mark.parametrize("padded", [False, True])
def test_rows_of_a_step(padded: bool) -> None:
    """As on a GPU, where captured steps are padded: a draft has a row for each of its tokens and one more."""
    speculator = Speculator(CONFIG)
    io, sampler, scheduler = make_io(short=True, speculator=speculator)
    config = SimpleNamespace(max_requests_per_batch=8)
    speculator.install(SimpleNamespace(cache=scheduler.cache, cb_config=config, inputs_and_outputs=io))
    drafter = Drafter(CONFIG, [*range(7), 40, 41, 5, 6, 40, 41])
    drawn = dataclasses.replace(SAMPLED, drafter=drafter)
    states = [decoding("a", 5, 1), decoding("b", 9, 4, sampling=drawn), decoding("c", 2, 1)]
    add(scheduler, *states)
    scheduler.speculator = speculator
    scheduled, fast, tokens, keys = scheduler.schedule_batch(32, 64)
    assert (fast, tokens) == (False, 7)
    assert drafter.draft == [5, 6, 40, 41]
    size = 16 if padded else tokens
    io.prepare_batch_tensors(scheduled, sampler, False, size, keys, padded)
    given = io.get_model_kwargs(use_padding=padded)
    more = 1 if padded else 0
    assert given["logits_indices"].tolist() == [*range(7), *[0] * more]
    assert given["cu_seq_lens_q"].tolist() == [0, 1, 6, *[7] * (5 + more)]
    assert given["cu_seq_lens_k"]["full_attention"].tolist() == [0, 6, 23, *[26] * (5 + more)]
    assert given["input_ids"][0, :7].tolist() == [40, 43, 5, 6, 40, 41, 40]
    assert given["position_ids"][0, :7].tolist() == [5, 12, 13, 14, 15, 16, 2]
    # Each row has the random number of its place.
    bits = random_bits(np.full(5, SAMPLED.seed, np.uint64), np.arange(13, 18, dtype=np.uint64))
    assert given["logits_processor_args"][4, 1:6].tolist() == bits.tolist()
    io.output_ids[0, :7] = torch.tensor([50, 5, 6, 51, 52, 54, 53])
    requests, last, _ = io.prepare_batch_update()
    assert [item.state for item in requests] == states
    assert last == [50, 51, 53]
    assert (states[1].generated_tokens[-2:], states[1].position_offset) == ([5, 6], 15)
