from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from openai_bls.core import word_lists
from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, OverloadedError
from openai_bls.transport.model_calls import Array, Arrays, ModelCallError, ModelUnavailableError
from openai_bls.triton_models.bls import prompts
from openai_bls.triton_models.bls.preprocessing_model import PreprocessingModel
from openai_bls.triton_models.bls.prompts import BlsPromptClient, OfficialPromptClient
from openai_bls.triton_models.preprocessing.model import Preprocessing
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import PREPROCESSING
from tests.fakes.model_calls import FakeModelCalls
from tests.unit.core_support import CHAT_TEMPLATE, WAIT_S, tiny_tokenizer, token_ids

USER = {"role": "user", "content": "hé 中"}
OFFICIAL = msgspec.structs.replace(
    PREPROCESSING,
    inputs=tuple(tensor for tensor in PREPROCESSING.inputs if tensor.name != "PROMPT_REQUEST"),
    outputs=tuple(tensor for tensor in PREPROCESSING.outputs if tensor.name != "PROMPT_RESULT"),
)
REQUESTS = {
    "chat": PromptRequest(messages=[USER]),
    "chat with special tokens": PromptRequest(messages=[USER], add_special_tokens=True),
    "chat that begins with one": PromptRequest(messages=[USER], chat_template="<s>{{ messages[0].content }}</s>"),
    "chat with two": PromptRequest(
        messages=[USER], chat_template="<s><s>{{ messages[0].content }}", add_special_tokens=True
    ),
    "raw": PromptRequest(prompts=["a b", "", "<s>中", "</s>"]),
    "raw without special tokens": PromptRequest(prompts=["a b", "<s>中", "</s>"], add_special_tokens=False),
    "bad words": PromptRequest(prompts=["a"], bad_words=["hé", " b", "a", "a"]),
    "prediction": PromptRequest(messages=[USER], prediction="hé <s>"),
    "tools": PromptRequest(messages=[USER], tools=[{"type": "function", "function": {"name": "f"}}]),
}


def tokenizer_with_special_tokens(folder: Path, single: str) -> Path:
    """The tiny tokenizer, which adds `<s>` and `</s>` as `single` says."""
    tokenizer = Tokenizer.from_str(tiny_tokenizer().to_str())
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)
    return folder


class Foreign:
    """A preprocessing with the official tensors that adds special tokens to every text, or to none."""

    def __init__(self, tokenizer_dir: Path, *, adds: bool = True) -> None:
        self._encoder = PromptEncoder(tokenizer_dir)
        self._adds = adds
        self.change: Callable[[Arrays], object] = lambda arrays: None

    def __call__(self, inputs: Mapping[str, Array]) -> Arrays:
        ((text,),) = inputs["QUERY"].tolist()
        ids = self._encoder.encode(text.decode(), add_special_tokens=self._adds)
        words = inputs["BAD_WORDS_DICT"][0] if "BAD_WORDS_DICT" in inputs else []
        encoded = [tuple(self._encoder.encode(word.decode(), add_special_tokens=False)) for word in words]
        answer: Arrays = {
            "INPUT_ID": np.array([[*ids, 0, 0]], np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(ids)]], np.int32),
            "BAD_WORDS_IDS": word_lists.encode(encoded)[np.newaxis],
        }
        self.change(answer)
        return answer


class World:
    """A client, and the models that it calls."""

    def __init__(self, tmp_path: Path, tokenizer_dir: Path, declared: str) -> None:
        folder = tmp_path / "preprocessing"
        folder.mkdir()
        (folder / "config.pbtxt").write_text(declared, encoding="utf-8")
        self.calls = FakeModelCalls()
        self.vocab_size = 1000
        self.model = PreprocessingModel(folder)
        self.tokenizer_dir = tokenizer_dir

    def official(self, timeout_s: float = WAIT_S) -> OfficialPromptClient:
        return OfficialPromptClient(self.model, self.calls, timeout_s, self.tokenizer_dir, lambda: self.vocab_size)


@pytest.fixture(params=["<s> $A", "$A </s>", "<s> $A </s>", "$A"])
def special_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tokenizer_with_special_tokens(tmp_path / "tokenizer", request.param)


@pytest.mark.parametrize("adds", [True, False])
async def test_a_foreign_one_gives_what_ours_gives(tmp_path: Path, special_dir: Path, adds: bool) -> None:
    world = World(tmp_path, special_dir, render(OFFICIAL))
    world.calls.models["preprocessing"] = Foreign(special_dir, adds=adds)
    client, ours = world.official(), PromptEncoder(special_dir)
    for name, request in REQUESTS.items():
        expected = ours.prepare(request)
        if request.messages is None and request.add_special_tokens is None and not adds:
            # A raw prompt has the special tokens that its preprocessing is configured to add.
            expected = ours.prepare(msgspec.structs.replace(request, add_special_tokens=False))
        assert await client.prepare(request) == expected, name
    await client.close()
    ours.close()


async def test_ours_gives_by_bls_what_it_gives_by_the_exchange(tmp_path: Path, tokenizer_dir: Path) -> None:
    world, ours = World(tmp_path, tokenizer_dir, render(PREPROCESSING)), Preprocessing(tokenizer_dir)
    world.calls.models["preprocessing"] = ours
    client = BlsPromptClient(world.model, world.calls, WAIT_S)
    for request in [*REQUESTS.values(), PromptRequest(messages=[USER], reasoning_effort="high")]:
        if not request.chat_template:
            assert await client.prepare(request) == ours.prepare(request)
    with pytest.raises(InvalidRequestError) as refused:
        await client.prepare(REQUESTS["chat with two"])
    assert (refused.value.param, refused.value.code) == ("chat_template", "unsupported_parameter")
    with pytest.raises(InvalidRequestError):
        await client.prepare(PromptRequest(prompts=["\ud800"]))
    world.calls.models["preprocessing"] = lambda inputs: {"PROMPT_RESULT": np.array([[b"\xc1"]], np.object_)}
    with pytest.raises(EngineError):
        await client.prepare(REQUESTS["raw"])


@pytest.fixture
def world(tmp_path: Path, tokenizer_dir: Path) -> World:
    return World(tmp_path, tokenizer_dir, render(OFFICIAL))


def put(name: str, array: Any) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({name: array})


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("INPUT_ID"),
        lambda arrays: arrays.pop("REQUEST_INPUT_LEN"),
        put("INPUT_ID", np.zeros((2, 3), np.int32)),
        put("INPUT_ID", np.zeros((), np.int32)),
        put("INPUT_ID", np.zeros((1, 3), np.float32)),
        put("INPUT_ID", np.array([[b"a"]], np.object_)),
        put("INPUT_ID", np.array([[1000, 1, 1]], np.int32)),
        put("INPUT_ID", np.array([[-1, 1, 1]], np.int32)),
        put("REQUEST_INPUT_LEN", np.array([[9]], np.int32)),
        put("REQUEST_INPUT_LEN", np.array([[-1]], np.int32)),
        put("REQUEST_INPUT_LEN", np.array([[1.5]], np.float32)),
        put("REQUEST_INPUT_LEN", np.array([1, 1], np.int32)),
        put("BAD_WORDS_IDS", np.zeros((1, 3, 2), np.int32)),
        put("BAD_WORDS_IDS", np.array([[[1], [2]]], np.int32)),
        put("BAD_WORDS_IDS", np.array([[[1, 2000], [1, 2]]], np.int32)),
    ],
)
async def test_bad_answers_are_a_plain_error(
    world: World, change: Callable[[Arrays], object], caplog: pytest.LogCaptureFixture
) -> None:
    foreign = Foreign(world.tokenizer_dir)
    foreign.change = change
    world.calls.models["preprocessing"] = foreign
    client = world.official()
    with caplog.at_level(logging.ERROR), pytest.raises(EngineError):
        await client.prepare(PromptRequest(prompts=["a"], bad_words=["b"]))
    assert "preprocessing" in caplog.text
    await client.close()


@pytest.mark.parametrize("left_out", ["BAD_WORDS_DICT", "BAD_WORDS_IDS"])
async def test_bad_words_need_their_tensors(tmp_path: Path, tokenizer_dir: Path, left_out: str) -> None:
    declared = render(OFFICIAL).replace(left_out, "SOMETHING_ELSE")
    world = World(tmp_path, tokenizer_dir, declared)
    world.calls.models["preprocessing"] = Foreign(tokenizer_dir)
    with pytest.raises(InvalidRequestError) as raised:
        await world.official().prepare(PromptRequest(prompts=["a"], bad_words=["b"]))
    assert raised.value.param == "bad_words"


async def test_bad_words_of_which_some_are_dropped_are_refused(world: World) -> None:
    """The oldest official ones read one text with commas between the words."""
    foreign = Foreign(world.tokenizer_dir)
    foreign.change = put("BAD_WORDS_IDS", np.array([[[1], [1]]], np.int32))
    world.calls.models["preprocessing"] = foreign
    with pytest.raises(InvalidRequestError) as raised:
        await world.official().prepare(PromptRequest(prompts=["a"], bad_words=["b"]))
    assert raised.value.param == "bad_words"


async def test_templates_and_texts_that_cannot_be_honoured_are_the_clients(world: World) -> None:
    world.calls.models["preprocessing"] = Foreign(world.tokenizer_dir)
    client = world.official()
    for request, message in (
        (PromptRequest(prompts=["\ud800"]), "surrogates"),
        (PromptRequest(messages=[USER], chat_template="{{ raise_exception('no') }}"), "messages: no"),
        (PromptRequest(messages=[USER], reasoning_effort="much"), "reasoning_effort"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            await client.prepare(request)
    await client.close()


async def test_one_without_a_length_has_no_padding(tmp_path: Path, tokenizer_dir: Path) -> None:
    world = World(tmp_path, tokenizer_dir, render(OFFICIAL).replace("REQUEST_INPUT_LEN", "SOMETHING_ELSE"))
    world.calls.models["preprocessing"] = lambda inputs: {"INPUT_ID": np.array([token_ids("a")], np.int64)}
    assert await world.official().prepare(PromptRequest(prompts=["a"])) == PromptResult([token_ids("a")])


async def test_failures_are_plain_errors(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prompts, "RELOAD_WAIT_S", 0.0)
    client = world.official(timeout_s=0.05)
    request = PromptRequest(prompts=["a"])

    async def error() -> ApiError:
        with pytest.raises(ApiError) as raised:
            await client.prepare(request)
        return raised.value

    def fail(inputs: object) -> Arrays:
        raise ModelCallError("RuntimeError: at /home/me")

    async def hang(inputs: object) -> Arrays:
        await asyncio.sleep(WAIT_S)
        return {}

    missing = await error()
    assert type(missing) is OverloadedError
    world.calls.models["preprocessing"] = fail
    with caplog.at_level(logging.ERROR):
        failed = await error()
    assert (type(failed), "/home/me" in failed.message, "/home/me" in caplog.text) == (EngineError, False, True)
    world.calls.models["preprocessing"] = hang
    late = await error()
    assert (type(late), late.message == missing.message) == (OverloadedError, False)
    await client.close()


async def test_a_request_waits_for_a_model_that_is_being_reloaded(world: World) -> None:
    foreign, tries = Foreign(world.tokenizer_dir), iter(range(2))

    def reloading(inputs: Mapping[str, Array]) -> Arrays:
        for _ in tries:
            raise ModelUnavailableError("is not ready")
        return foreign(inputs)

    world.calls.models["preprocessing"] = reloading
    assert await world.official().prepare(PromptRequest(prompts=["a"])) == PromptResult([token_ids("a")])


async def test_a_tokenizer_that_cannot_be_loaded_is_an_error_of_the_server(world: World, tmp_path: Path) -> None:
    world.tokenizer_dir = tmp_path
    with pytest.raises(EngineError):
        await world.official().prepare(PromptRequest(messages=[USER]))
