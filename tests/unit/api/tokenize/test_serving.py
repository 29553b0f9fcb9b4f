from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from tests.unit.api.http_support import application, asked, refused
from tests.unit.core_support import EOS, VOCAB_SIZE, Bench, ask, engine_info, tiny_tokenizer, token_ids, until

TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"
USER = {"role": "user", "content": "hi 你好"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class RealPrompts:
    """Preprocessing itself, without the process."""

    connected = True

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder

    async def prepare(self, request: PromptRequest) -> PromptResult:
        return self._encoder.prepare(request)


@pytest.fixture(scope="module")
def encoder(tokenizer_dir: Path) -> PromptEncoder:
    return PromptEncoder(tokenizer_dir)


@pytest.fixture
def real(encoder: PromptEncoder) -> Bench:
    bench = Bench(trust_chat_template=True)
    bench.model.prompts = RealPrompts(encoder)
    return bench


def answer_of(bench: Bench, path: str, **body: Any) -> Any:
    answered = asked(bench, path, body)
    assert answered.status == 200
    assert answered.headers["content-type"] == "application/json"
    return answered.json()


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_prompts_ids_and_their_texts(prefix: str) -> None:
    bench = Bench()
    plain = {"count": 3, "max_model_len": 1000, "tokens": token_ids("hé"), "token_strs": None}
    assert answer_of(bench, f"{prefix}/tokenize", prompt="hé", model="openai_bls") == plain
    # The two bytes of é are a token each.
    strings = {"token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"]}
    assert answer_of(bench, f"{prefix}/tokenize", prompt="hé", return_token_strs=True) == {**plain, **strings}
    assert answer_of(bench, f"{prefix}/detokenize", model="tiny", tokens=token_ids("hé")) == {"prompt": "hé"}
    assert bench.engine.requests == []


@pytest.mark.parametrize(("given_value", "meant"), [(None, True), (True, True), (False, False)])
def test_special_tokens_are_added_unless_not_wanted(given_value: bool | None, meant: bool) -> None:
    bench = Bench()
    answer_of(bench, TOKENIZE, prompt="x", add_special_tokens=given_value)
    assert bench.prompts.requests == [PromptRequest(prompts=["x"], add_special_tokens=meant)]


@pytest.mark.parametrize("length", [0, 2000])
def test_an_empty_prompt_and_one_longer_than_the_context(length: int) -> None:
    assert answer_of(Bench(), TOKENIZE, prompt="x" * length)["count"] == length


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
def test_a_chats_ids_are_those_of_its_completion(real: Bench, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [USER], **fields}
    answer = answer_of(real, TOKENIZE, **body)
    feed = lambda: real.engine.deliver(0, "ok", "stop", stop_token_id=EOS)  # noqa: E731
    completion = asked(real, "/v1/chat/completions", body, feed).json()
    assert answer["tokens"] == real.engine.requests[0].prompt_token_ids
    assert answer["count"] == completion["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": "x", "messages": [USER]}, "prompt"),
        (TOKENIZE, {"prompt": ["x"]}, "prompt"),
        (TOKENIZE, {"prompt": 1}, "prompt"),
        (TOKENIZE, {"prompt": "x", "tools": []}, "tools"),
        (TOKENIZE, {"prompt": "x", "temperature": 1}, "temperature"),
        (TOKENIZE, {"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        (TOKENIZE, {"messages": []}, "messages"),
        (TOKENIZE, {"messages": [USER], "temperature": 1}, "temperature"),
        (TOKENIZE, {"messages": [USER], "return_token_strs": "yes"}, "return_token_strs"),
        (TOKENIZE, {"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        (TOKENIZE, {"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        (TOKENIZE, {"messages": [USER], "chat_template": "x"}, "chat_template"),
        (TOKENIZE, {"messages": [USER], "model": 3}, "model"),
        (
            TOKENIZE,
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": "1"}, "tokens"),
        (DETOKENIZE, {"tokens": [1, "2"]}, "tokens[1]"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": [0, VOCAB_SIZE]}, "tokens"),
        (DETOKENIZE, {"tokens": [1], "skip_special_tokens": True}, "skip_special_tokens"),
    ],
)
def test_bad_bodies_are_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    assert refused(Bench(), path, body)[:2] == (400, param)


def test_what_a_template_refuses(real: Bench) -> None:
    body = {"messages": [USER], "chat_template": "{{ raise_exception('no') }}"}
    assert refused(real, TOKENIZE, body)[:2] == (400, "messages")


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40), st.text(max_size=40))
@settings(deadline=None, max_examples=30)
def test_detokenize_is_the_tokenizers_decode_and_tokenize_its_inverse(ids: list[int], text: str) -> None:
    bench = Bench()
    decoded = tiny_tokenizer().decode(ids, skip_special_tokens=False)
    assert answer_of(bench, DETOKENIZE, tokens=ids)["prompt"] == decoded
    tokens = answer_of(bench, TOKENIZE, prompt=text)["tokens"]
    assert answer_of(bench, DETOKENIZE, tokens=tokens)["prompt"] == text


def test_both_go_to_the_model_that_is_named_and_to_none_of_a_server_that_drains() -> None:
    draining = Bench()
    draining.service.draining = True
    for path, body in ((TOKENIZE, {"prompt": "x"}), (DETOKENIZE, {"tokens": [1]})):
        assert refused(Bench(), path, {**body, "model": "other"}) == (404, "model", "model_not_found")
        assert refused(draining, path, body)[0] == 503


async def test_each_is_in_progress_while_it_lasts_and_recorded() -> None:
    bench = Bench()
    app = application(bench)
    bench.prompts.hold = asyncio.Event().wait()
    task = asyncio.ensure_future(ask(app, "POST", TOKENIZE, {"prompt": "x"}))
    await until(lambda: bench.prompts.requests)
    assert bench.service.in_progress == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    bench.prompts.hold = None
    assert (await ask(app, "POST", DETOKENIZE, {"tokens": [1]})).status == 200
    bench.prompts.result = PromptResult(error="no", param="prompt")
    assert (await ask(app, "POST", TOKENIZE, {"prompt": "x"})).status == 400
    bench.prompts.result = RuntimeError("secret path /x")
    broken = await ask(app, "POST", TOKENIZE, {"prompt": "x"})
    assert (broken.status, b"secret" in broken.body) == (500, False)
    outcomes = [getattr(record.outcome, "status", record.outcome) for record in bench.records]
    assert outcomes == ["cancelled", "done", 400, 500]
    assert [record.endpoint for record in bench.records] == ["tokenize", "detokenize", "tokenize", "tokenize"]
    assert {record.model for record in bench.records} == {"tiny"}
    assert bench.busy == [1, 0] * 4


def test_ids_that_only_the_engine_has_are_no_text() -> None:
    """Vocabularies are padded to round sizes; the engine could sample such an id."""
    bench = Bench(info=engine_info(vocab_size=VOCAB_SIZE + 1))
    tokens = [*token_ids("a"), VOCAB_SIZE, *token_ids("b")]
    assert answer_of(bench, DETOKENIZE, tokens=tokens) == {"prompt": "ab"}
