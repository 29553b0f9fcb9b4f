"""Decisions by a model whose probabilities are known."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.decisions.parsing import MAX_IMAGES
from openai_bls.core.engine_types import GenerationRequest, PromptRequest, PromptResult, TokenDelta
from openai_bls.output.detect import detect
from tests.pictures import data_uri, picture
from tests.unit.api.decisions.support import PATH, Engine, certain, choice, decided, logprob
from tests.unit.api.http_support import application, asked, given_up, refused
from tests.unit.core_support import Bench, engine_info, token_ids

YES_OR_NO = {"type": "predicate", "instructions": "It is so.", "name": "so"}
GRADES = {"type": "score", "instructions": "How good?", "levels": [{"label": one} for one in ("bad", "fair", "good")]}


def shares(prompt: list[int], texts: list[str]) -> list[float]:
    """Probabilities of labels, asked for one by one."""
    begins = {text: math.exp(logprob(prompt, text)) for text in texts}
    own = dict(begins)
    for text in sorted(texts, key=len):
        shorter = [one for one in texts if one != text and text.startswith(one)]
        if shorter:
            own[max(shorter, key=len)] -= begins[text]
    total = math.fsum(own.values())
    return [own[text] / total for text in texts]


@settings(deadline=None, max_examples=40)
@given(
    values=st.lists(st.text("ab N", min_size=1, max_size=5).filter(str.strip), min_size=2, max_size=9, unique=True),
    likeliest=st.sampled_from([0, 1, 20]),
    most=st.integers(1, 5),
)
def test_choices_have_the_probabilities_of_their_labels(values: list[str], likeliest: int, most: int) -> None:
    bench = Bench(engine_info(max_logprobs=likeliest), max_choices=most)
    engine = Engine(bench)
    (answer,) = decided(bench, choice(*values))["answers"]
    assert [one["value"] for one in answer["probabilities"]] == values
    found = [one["probability"] for one in answer["probabilities"]]
    prompt = bench.engine.requests[0].prompt_token_ids
    assert found == pytest.approx(shares(prompt, values), rel=1e-6, abs=1e-12)
    assert answer["choice"] == values[found.index(max(found))]
    # Each beginning of a label is read at most once, and all of them under one prompt.
    reads = [(*one.prompt_token_ids, *one.sampling.logit_bias) for one in bench.engine.requests]
    assert len(reads) == len(set(reads)) <= 1 + len({text[:end] for text in values for end in range(1, len(text) + 1)})
    assert all(one.prompt_token_ids[: len(prompt)] == prompt for one in bench.engine.requests)
    assert engine.most <= most


def test_answers_in_the_order_of_the_questions() -> None:
    bench = Bench()
    Engine(bench)
    answer = decided(bench, YES_OR_NO, GRADES, choice("x", "y", name="which"), model="tiny")
    so, grade, which = answer["answers"]
    prompts = [one.prompt_token_ids for one in bench.engine.requests[:3]]
    assert [(one["type"], one["name"]) for one in (so, grade, which)] == [
        ("predicate", "so"),
        ("score", None),
        ("choice", "which"),
    ]
    assert so["probability"] == pytest.approx(shares(prompts[0], ["Yes", "No"])[0])
    chances = shares(prompts[1], ["bad", "fair", "good"])
    assert grade["score"] == pytest.approx(chances[1] + 2 * chances[2])
    assert all(token_ids("hello\n\n") == prompt[:7] for prompt in prompts)
    count = sum(map(len, prompts))
    assert answer["usage"] == {
        "input_tokens": count,
        "input_tokens_details": {"cached_tokens": 9, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": count,
    }
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("decisions", "tiny", "done")
    assert record.usage.prompt_tokens == count


def test_the_first_prompt_is_read_before_the_others() -> None:
    bench = Bench()
    at_once: list[int] = []
    engine = Engine(bench)
    submit = engine.submit

    def noted(request: Any, listener: Any) -> None:
        submit(request, listener)
        at_once.append(engine.most)

    bench.engine.submit = noted  # type: ignore[method-assign]
    decided(bench, YES_OR_NO, YES_OR_NO, YES_OR_NO)
    assert at_once[:3] == [1, 1, 2]


def test_a_boolean_and_the_same_text() -> None:
    bench = Bench()
    Engine(bench)
    (answer,) = decided(bench, choice(True, "true", False))["answers"]
    assert [one["value"] for one in answer["probabilities"]] == [True, "true", False]
    prompt = bench.engine.requests[0].prompt_token_ids
    expected = shares(prompt, ["true", '"true"', "false"])
    assert [one["probability"] for one in answer["probabilities"]] == pytest.approx(expected)


def test_a_token_that_no_bias_brings_has_no_probability() -> None:
    bench = Bench(engine_info(max_logprobs=0))
    (token_id,) = token_ids("a")
    Engine(bench, lambda one: certain(one, token_id))
    (answer,) = decided(bench, choice("a", "zz"))["answers"]
    assert [one["probability"] for one in answer["probabilities"]] == [1, 0]


def test_input_items_are_a_conversation() -> None:
    bench = Bench()
    Engine(bench)
    items = [
        {"role": "developer", "content": "Be strict."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, _json({"k": [1, "é"]})]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}', "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "text"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "43"}]},
        {"role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": "It is."}]},
    ]
    answered = asked(bench, PATH, {"input": items, "questions": [YES_OR_NO], "safety_identifier": "s"})
    assert answered.status == 200, answered.body
    assert answered.headers["openai-bls-ignored"] == "safety_identifier, input[].phase"
    _, chat = bench.prompts.requests
    assert chat.messages is not None
    assert [(one["role"], one["content"]) for one in chat.messages[:2]] == [
        ("system", "Be strict."),
        ("user", 'a\n{"k":[1,"é"]}'),
    ]
    calls = [(one["id"], one["function"]["name"]) for one in chat.messages[2]["tool_calls"]]
    assert calls == [("c1", "n__f"), ("c2", "g")]
    assert [one["content"] for one in chat.messages[3:6]] == ["42", "43", "It is."]
    assert chat.messages[6]["role"] == "user"
    assert chat.messages[6]["content"].startswith("It is so.\n")
    assert chat.reasoning_effort == "none"


def test_unknown_fields_that_are_taken() -> None:
    bench = Bench(unknown_fields="ignore")
    Engine(bench)
    question = {**YES_OR_NO, "hint": 1}
    text = {"role": "user", "content": [{"type": "input_text", "text": "a", "tone": "b"}]}
    answered = asked(bench, PATH, {"input": [text], "questions": [question], "seed": 3})
    assert answered.status == 200, answered.body
    ignored = answered.headers["openai-bls-ignored"].split(", ")
    assert sorted(ignored) == ["input[].content[].tone", "questions[].hint", "seed"]


def _json(data: Any) -> dict[str, Any]:
    return {"type": "input_json", "data": data}


def test_images_of_the_input_and_of_a_question() -> None:
    bench = Bench(engine_info(max_images=4, input_modalities=("text", "image")))
    Engine(bench)
    image = {"type": "input_image", "image_url": data_uri(picture(4, 3))}
    other = {"type": "input_image", "image_url": data_uri(picture(5, 2))}
    sees = [{"role": "user", "content": [{"type": "input_text", "text": "see"}, image]}]
    asks = {**YES_OR_NO, "instructions": [{"type": "input_text", "text": "like"}, other]}
    decided(bench, YES_OR_NO, asks, input=sees)
    first, second = bench.engine.requests[:2]
    assert first.media is not None
    assert second.media is not None
    assert [(one.width, one.height) for one in first.media.images] == [(4, 3)]
    assert [(one.width, one.height) for one in second.media.images] == [(4, 3), (5, 2)]
    many = [YES_OR_NO] * (MAX_IMAGES + 1)
    body = {"input": sees, "questions": many}
    assert refused(Bench(), PATH, body) == (400, "questions", "too_many_images")
    body = {"input": sees, "questions": [YES_OR_NO]}
    assert refused(Bench(), PATH, body) == (400, "input[0].content[1]", "unsupported_content")


LONG = "x" * 300_000
DEEP: Any = {}
for _ in range(33):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "nothing"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "system", "content": [_json({})]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [_json(DEEP)]}]}, "input[0].content[0].data"),
        ({"input": [{"role": "user", "content": [_json({"a": [0] * 10_001})]}]}, "input[0].content[0].data"),
        ({"input": [{"role": "user", "content": [_json({"a": LONG})]}]}, "input[0].content[0].data"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": "hello " * 300}, "input"),
        ({"questions": []}, "questions"),
        ({"questions": [YES_OR_NO] * 401}, "questions"),
        ({"questions": [{"type": "guess", "instructions": "x"}]}, "questions[0].type"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
        ({"questions": [{**YES_OR_NO, "instructions": []}]}, "questions[0].instructions"),
        ({"questions": [{**YES_OR_NO, "choices": []}]}, "questions[0].choices"),
        ({"questions": [choice("a")]}, "questions[0].choices"),
        ({"questions": [choice(*map(str, range(256)))]}, "questions[0].choices"),
        ({"questions": [choice("a", "b", "a")]}, "questions[0].choices[2].value"),
        ({"questions": [choice(True, True)]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", "")]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", " \n")]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", "b" * 513)]}, "questions[0].choices[1].value"),
        ({"questions": [choice("a", 1)]}, "questions[0].choices[1].value"),  # type: ignore[arg-type]
        ({"questions": [YES_OR_NO, {**GRADES, "levels": [{"label": "a"}] * 2}]}, "questions[1].levels[1].label"),
        ({"questions": [{**GRADES, "levels": [{"label": str(one)} for one in range(11)]}]}, "questions[0].levels"),
        ({"questions": [choice(*map(str, range(255)))] * 9}, "questions"),
        ({"model": "nope"}, "model"),
        ({"top_p": 1}, "top_p"),
    ],
)
def test_refusals(body: dict[str, Any], param: str) -> None:
    assert refused(Bench(), PATH, {"input": "hello", "questions": [YES_OR_NO], **body})[1] == param


def test_labels_that_a_tokenizer_makes_the_same_or_nothing() -> None:
    for number, ids in ((1, [[1], [1]]), (0, [[], [1]])):
        bench = Bench()
        bench.prompts.result = PromptResult(ids)
        body = {"input": "x", "questions": [choice("a", "A")]}
        assert refused(bench, PATH, body)[:2] == (400, f"questions[0].choices[{number}].value")


def test_too_many_reads_of_a_long_prompt() -> None:
    bench = Bench(engine_info(max_model_len=1_000_000))
    questions = [choice("a" * 500, "b" * 500)]
    assert refused(bench, PATH, {"input": "x" * 9000, "questions": questions})[:2] == (400, "questions")


@pytest.mark.parametrize("field", ["logprobs", "logit_bias"])
def test_an_engine_that_cannot(field: str) -> None:
    bench = Bench(engine_info(supported=tuple(one for one in engine_info().supported if one != field)))
    body = {"input": "x", "questions": [YES_OR_NO]}
    assert refused(bench, PATH, body) == (400, "model", "unsupported_parameter")
    bench = Bench(engine_info(task="embeddings"))
    assert refused(bench, PATH, body) == (400, "model", "unsupported_endpoint")


def test_a_model_that_always_thinks() -> None:
    formats = detect("{{ messages }}<think>", tool_call_parser="none", reasoning_parser="deepseek_r1")
    bench = Bench(formats=formats)
    body = {"input": "x", "questions": [YES_OR_NO]}

    async def thinking(request: PromptRequest) -> PromptResult:
        texts = request.prompts or ["x<think>\n"]
        return PromptResult([token_ids(text) for text in texts])

    bench.prompts.prepare = thinking  # type: ignore[method-assign]
    assert refused(bench, PATH, body) == (400, "model", "unsupported_endpoint")


@pytest.mark.parametrize("invalid", [True, False])
def test_an_engine_that_fails(invalid: bool) -> None:
    bench = Bench(engine_info(max_logprobs=0))
    seen: list[int] = []

    def fails(request: GenerationRequest) -> TokenDelta:
        seen.append(request.request_id)
        if len(seen) < 3:
            return certain(request, 1)
        return TokenDelta(request.request_id, [], "error", error="no", invalid=invalid)

    Engine(bench, fails)
    answered = asked(bench, PATH, {"input": "x", "questions": [choice("aa", "bb")]})
    assert answered.status == (400 if invalid else 500)
    (record,) = bench.records
    assert record.outcome not in ("done", "cancelled")


def test_a_key_pays_for_its_prompts_and_labels(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: a tokens_per_minute=150\nbob: b tokens_per_minute=9\n")
    bench = Bench(api_keys_file=str(tmp_path / "keys"))
    Engine(bench)
    body = {"input": "x", "questions": [YES_OR_NO]}
    for key, statuses in (("a", (200, 200, 429)), ("b", (429,))):
        found = [asked(bench, PATH, body, headers=[("Authorization", f"Bearer {key}")]).status for _ in statuses]
        assert tuple(found) == statuses
    used = [record.usage.prompt_tokens for record in bench.records if record.outcome == "done"]
    assert used == [len(bench.engine.requests[0].prompt_token_ids)] * 2


def test_a_client_that_goes_away() -> None:
    async def main() -> None:
        bench = Bench()
        await given_up(application(bench), bench.engine, PATH, {"input": "x", "questions": [YES_OR_NO, GRADES]})
        assert [record.outcome for record in bench.records] == ["cancelled"]
        assert bench.service.in_progress == 0
        assert bench.service.admission(bench.model).running == 0

    asyncio.run(main())
