from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.chat import serving
from openai_bls.api.chat.validation import parse_object
from openai_bls.api.tokenize.serving import detokenize, tokenize
from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, ModelNotFoundError, OverloadedError
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from tests.unit.core_support import EOS, VOCAB_SIZE, Bench, engine_info, request_context, tiny_tokenizer, token_ids

USER = {"role": "user", "content": "hi 你好"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class RealPrompts:
    """Preprocessing itself, without the process."""

    connected = True

    def __init__(self, tokenizer_dir: Path) -> None:
        self._encoder = PromptEncoder(tokenizer_dir)

    async def prepare(self, request: PromptRequest) -> PromptResult:
        return self._encoder.prepare(request)


def refused(body: dict[str, Any], endpoint: Any = tokenize, **options: Any) -> ApiError:
    bench = Bench(**options)
    with pytest.raises(ApiError) as caught:
        asyncio.run(endpoint(bench.service, request_context(), body))
    assert (bench.service.in_progress, bench.engine.requests) == (0, [])
    return caught.value


async def test_a_prompts_ids_and_their_texts(bench: Bench) -> None:
    answer = await tokenize(bench.service, request_context("tokenize"), {"prompt": "hé", "return_token_strs": True})
    assert answer.tokens == token_ids("hé")
    assert (answer.count, answer.max_model_len) == (3, 1000)
    # The two bytes of é are a token each.
    assert answer.token_strs == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    plain = await tokenize(bench.service, request_context("tokenize"), {"prompt": "hé", "model": "openai_bls"})
    assert (plain.tokens, plain.token_strs) == (answer.tokens, None)
    assert bench.engine.requests == []


@pytest.mark.parametrize(("given_value", "meant"), [(None, True), (True, True), (False, False)])
async def test_special_tokens_are_added_unless_not_wanted(bench: Bench, given_value: bool | None, meant: bool) -> None:
    await tokenize(bench.service, request_context("tokenize"), {"prompt": "x", "add_special_tokens": given_value})
    assert bench.prompts.requests == [PromptRequest(prompts=["x"], add_special_tokens=meant)]


async def test_an_empty_prompt_and_one_longer_than_the_context(bench: Bench) -> None:
    assert (await tokenize(bench.service, request_context("tokenize"), {"prompt": ""})).count == 0
    assert (await tokenize(bench.service, request_context("tokenize"), {"prompt": "x" * 2000})).count == 2000


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"add_generation_prompt": False},
        {"messages": [USER, {"role": "assistant", "content": "ho"}], "continue_final_message": True},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "none"},
        {"chat_template_kwargs": {"thinking": "yes"}},
        {"chat_template": "{{ messages[0].content }}!"},
        {"add_special_tokens": True},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, USER]},
    ],
)
async def test_a_chats_ids_are_those_of_its_completion(tokenizer_dir: Path, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [USER], **fields}
    bench = Bench(trust_chat_template=True)
    bench.model.prompts = RealPrompts(tokenizer_dir)
    answer = await tokenize(bench.service, request_context("tokenize"), body)
    completion = asyncio.create_task(
        serving.answer(bench.service, request_context(), parse_object("chat.completions", body))
    )
    while not bench.engine.requests:
        await asyncio.sleep(0)
    bench.engine.deliver(0, "ok", "stop", stop_token_id=EOS)
    assert answer.tokens == bench.engine.requests[0].prompt_token_ids
    assert answer.count == (await completion).usage.prompt_tokens > 0
    assert bench.service.in_progress == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": [USER]}, "prompt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": "x", "tools": []}, "tools"),
        ({"prompt": "x", "temperature": 1}, "temperature"),
        ({"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        ({"messages": []}, "messages"),
        ({"messages": [USER], "temperature": 1}, "temperature"),
        ({"messages": [USER], "return_token_strs": "yes"}, "return_token_strs"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [USER], "chat_template": "x"}, "chat_template"),
        ({"messages": [USER], "model": 3}, "model"),
        ({"messages": [USER], "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_bad_bodies_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    error = refused(body)
    assert isinstance(error, InvalidRequestError)
    assert error.param == param


async def test_what_a_template_refuses(tokenizer_dir: Path) -> None:
    bench = Bench(trust_chat_template=True)
    bench.model.prompts = RealPrompts(tokenizer_dir)
    with pytest.raises(InvalidRequestError, match="refuses the messages: no") as caught:
        await tokenize(
            bench.service,
            request_context("tokenize"),
            {"messages": [USER], "chat_template": "{{ raise_exception('no') }}"},
        )
    assert caught.value.param == "messages"
    assert bench.service.in_progress == 0


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40))
@settings(deadline=None, max_examples=60)
def test_detokenize_is_the_tokenizers_decode(ids: list[int]) -> None:
    async def test(bench: Bench) -> None:
        answer = await detokenize(bench.service, request_context("detokenize"), {"tokens": ids})
        assert answer.prompt == tiny_tokenizer().decode(ids, skip_special_tokens=False)

    asyncio.run(test(Bench()))


@given(st.text(max_size=40))
@settings(deadline=None, max_examples=60)
def test_there_and_back(text: str) -> None:
    async def test(bench: Bench) -> None:
        tokens = (await tokenize(bench.service, request_context("tokenize"), {"prompt": text})).tokens
        assert (await detokenize(bench.service, request_context("detokenize"), {"tokens": tokens})).prompt == text

    asyncio.run(test(Bench()))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tokens"),
        ({"tokens": "1"}, "tokens"),
        ({"tokens": [1, "2"]}, "tokens[1]"),
        ({"tokens": [-1]}, "tokens[0]"),
        ({"tokens": [0, VOCAB_SIZE]}, "tokens"),
        ({"tokens": [1], "skip_special_tokens": True}, "skip_special_tokens"),
    ],
)
def test_bad_tokens_are_refused(body: dict[str, Any], param: str) -> None:
    error = refused(body, detokenize)
    assert (error.status, error.param) == (400, param)


def test_both_go_to_the_model_that_is_named_and_to_no_other() -> None:
    for endpoint, body in ((tokenize, {"prompt": "x"}), (detokenize, {"tokens": [1]})):
        assert isinstance(refused({**body, "model": "other"}, endpoint), ModelNotFoundError)


async def test_a_server_that_drains_takes_none(bench: Bench) -> None:
    bench.service.draining = True
    for endpoint, body in ((tokenize, {"prompt": "x"}), (detokenize, {"tokens": [1]})):
        with pytest.raises(OverloadedError):
            await endpoint(bench.service, request_context(), body)


async def test_each_is_in_progress_while_it_lasts_and_recorded(bench: Bench) -> None:
    bench.prompts.hold = asyncio.Event().wait()
    task = asyncio.create_task(tokenize(bench.service, request_context("tokenize"), {"prompt": "x"}))
    while not bench.prompts.requests:
        await asyncio.sleep(0)
    assert bench.service.in_progress == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    bench.prompts.hold = None
    await detokenize(bench.service, request_context("detokenize"), {"tokens": [1]})
    bench.prompts.result = PromptResult(error="no", param="prompt")
    with pytest.raises(InvalidRequestError) as caught:
        await tokenize(bench.service, request_context("tokenize"), {"prompt": "x"})
    assert [(r.endpoint, r.outcome, r.model) for r in bench.records] == [
        ("tokenize", "cancelled", "tiny"),
        ("detokenize", "done", "tiny"),
        ("tokenize", caught.value, "tiny"),
    ]
    assert bench.busy == [1, 0] * 3


async def test_ids_that_only_the_engine_has_are_no_text() -> None:
    """Vocabularies are padded to round sizes; the engine could sample such an id."""
    bench = Bench(info=engine_info(vocab_size=VOCAB_SIZE + 1))
    answer = await detokenize(
        bench.service, request_context("detokenize"), {"tokens": [*token_ids("a"), VOCAB_SIZE, *token_ids("b")]}
    )
    assert answer.prompt == "ab"
    assert bench.service.in_progress == 0


async def test_an_unexpected_failure_is_recorded_and_told_without_its_words(bench: Bench) -> None:
    bench.prompts.result = RuntimeError("secret path /x")
    with pytest.raises(EngineError) as caught:
        await tokenize(bench.service, request_context("tokenize"), {"prompt": "x"})
    assert "secret" not in caught.value.message
    (record,) = bench.records
    # The same error, so that it is not counted again where it is answered.
    assert record.outcome is caught.value
    assert record.endpoint == "tokenize"
