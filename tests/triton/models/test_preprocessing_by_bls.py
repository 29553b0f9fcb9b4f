"""Prompts prepared by BLS calls: of a preprocessing that is not ours in place of ours, and of ours."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import tritonclient.grpc as grpcclient

from openai_bls.launcher.recovery.reload import reload_models
from openai_bls.launcher.testing import RunningServer, run_server
from openai_bls.triton_models.repository.render_configs import configure
from tests.triton import triton_client
from tests.triton.conftest import ANSWERED, CHECKPOINT, RAW, SHORT_CHATS, TOOL_CHATS, Golden
from tests.triton.conversations import QUESTION
from tests.waiting import until

pytestmark = pytest.mark.triton

FOREIGN = Path(__file__).parent / "foreign_preprocessing"
GREEDY: dict[str, Any] = {"model": "openai_bls", "temperature": 0, "max_tokens": 1200}
# Long enough for a busy machine, short enough to wait for.
TIMEOUT_S = 4


@pytest.fixture(scope="module")
def foreign(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, openai.OpenAI, Path]]:
    """A server whose preprocessing is another's, and the folder with its files."""
    folder = tmp_path_factory.mktemp("foreign")
    copy, log = folder / "model_repository", folder / "log"
    shutil.copytree(repository, copy)
    shutil.rmtree(copy / "preprocessing")
    (copy / "preprocessing" / "1").mkdir(parents=True)
    shutil.copy(FOREIGN / "model.py", copy / "preprocessing" / "1")
    shutil.copy(CHECKPOINT / "tokenizer.json", folder)
    config = (FOREIGN / "config.pbtxt").read_text(encoding="utf-8").replace("TOKENIZER_DIR", str(folder))
    (copy / "preprocessing" / "config.pbtxt").write_text(config, encoding="utf-8")
    configure(copy, [f"openai_bls.preprocessing_timeout_s={TIMEOUT_S}"])
    with (
        run_server(copy, None, ["--model-control-mode=explicit", "--load-model=*"], log_path=log) as server,
        openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client,
    ):
        yield server, client, folder
    assert not re.search(r"signal|core dumped|Segmentation", log.read_text(encoding="utf-8", errors="replace"))


@pytest.fixture(scope="module")
def forced(foreign: tuple[RunningServer, openai.OpenAI, Path], repository: Path) -> tuple[RunningServer, openai.OpenAI]:
    """The same server with our preprocessing again, which is to be called by BLS all the same."""
    server, client, folder = foreign
    copy = folder / "model_repository"
    shutil.rmtree(copy / "preprocessing")
    shutil.copytree(repository / "preprocessing", copy / "preprocessing")
    configure(copy, ["openai_bls.preprocessing_transport=bls", "openai_bls.preprocessing_timeout_s="])
    reload_models(server.grpc_url, ["preprocessing", "openai_bls"], print)
    until(lambda: answers(client))
    return server, client


def answers(client: openai.OpenAI) -> bool:
    with contextlib.suppress(openai.APIConnectionError):
        return bool(client.models.list())
    return False


def answers_are_golden(client: openai.OpenAI) -> None:
    """Chats, streamed and not, chats with tools and raw prompts, all at once."""

    def chat(golden: Golden) -> Any:
        messages: Any = golden.messages
        return client.chat.completions.create(messages=messages, **GREEDY).choices[0].message.content

    def stream(golden: Golden) -> str:
        messages: Any = golden.messages
        chunks = client.chat.completions.create(messages=messages, stream=True, **GREEDY)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    def raw(golden: Golden) -> Any:
        return client.completions.create(prompt=golden.raw or "", **GREEDY).choices[0].text

    work = [(way, golden) for golden in SHORT_CHATS for way in (chat, stream)] + [(raw, golden) for golden in RAW]
    with ThreadPoolExecutor(32) as pool:
        for text, (_, golden) in zip(pool.map(lambda item: item[0](item[1]), work), work, strict=True):
            assert text == golden.answer, golden.label
    messages: Any = TOOL_CHATS[0].messages
    tools: Any = TOOL_CHATS[0].tools
    message = client.chat.completions.create(messages=messages, tools=tools, **GREEDY).choices[0].message
    assert message.tool_calls
    assert message.tool_calls[0].function.name in TOOL_CHATS[0].answer


def tokens(client: openai.OpenAI, **body: Any) -> list[int]:
    ids: list[int] = client.post("/tokenize", body=body, cast_to=httpx.Response).json()["tokens"]
    return ids


def banned_words_are_not_said(client: openai.OpenAI) -> None:
    words = ANSWERED.answer.split()[1:3]
    answer = client.chat.completions.create(messages=QUESTION, extra_body={"bad_words": words}, **GREEDY)
    text = answer.choices[0].message.content
    assert text
    assert not [word for word in words if word in text]


def test_a_foreign_preprocessing_gives_the_golden_answers(
    foreign: tuple[RunningServer, openai.OpenAI, Path], client: openai.OpenAI
) -> None:
    server, by_bls, _ = foreign
    answers_are_golden(by_bls)
    banned_words_are_not_said(by_bls)
    for body in ({"messages": QUESTION}, {"prompt": "Héllo 世界 🤷"}, {"prompt": "a", "add_special_tokens": False}):
        assert tokens(by_bls, **body) == tokens(client, **body)
    # The rest of the server too: the ensemble has called it by Triton's own way all along.
    fields = {"text_input": RAW[0].raw, "max_tokens": RAW[0].tokens, "temperature": 0.0}
    for name in ("ensemble", "tensorrt_llm_bls"):
        assert triton_client.generate(server.http_url, name, fields)["text_output"] == RAW[0].answer


@pytest.mark.parametrize("fault", ["refuse", "outside", "length", "missing"])
def test_its_faults_are_a_plain_error(foreign: tuple[RunningServer, openai.OpenAI, Path], fault: str) -> None:
    server, client, _ = foreign
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(prompt=f"[{fault}]", **GREEDY)
    assert raised.value.status_code == 500
    assert raised.value.body == {
        "message": "The prompt could not be prepared; see the server's log.",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert "preprocessing" in server.log_path.read_text(encoding="utf-8")


def test_one_that_hangs_meets_its_deadline_and_holds_up_no_other(
    foreign: tuple[RunningServer, openai.OpenAI, Path],
) -> None:
    _, client, folder = foreign
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(lambda: client.completions.create(prompt="[hang]", **GREEDY))
        # The model's other instance, and other connections.
        assert client.completions.create(prompt=RAW[0].raw or "", **GREEDY).choices[0].text == RAW[0].answer
        error = hanging.exception()
    assert isinstance(error, openai.InternalServerError)
    assert error.status_code == 503
    assert "does not answer" in error.message
    (folder / "released").touch()
    assert client.completions.create(prompt="[hang]", **{**GREEDY, "max_tokens": 1}).choices


def test_a_reload_of_it_makes_requests_wait(foreign: tuple[RunningServer, openai.OpenAI, Path]) -> None:
    server, client, _ = foreign
    prompt, expected = RAW[0].raw or "", RAW[0].answer

    def ask() -> Any:
        try:
            return client.completions.create(prompt=prompt, **GREEDY).choices[0].text
        except openai.InternalServerError as error:
            # On a busy machine it takes longer than a request waits.
            return expected if "is not available" in error.message else error.message

    with ThreadPoolExecutor(8) as pool:
        reloading = pool.submit(reload_models, server.grpc_url, ["preprocessing"], print)
        while not reloading.done():
            assert set(pool.map(lambda _: ask(), range(4))) == {expected}
        reloading.result()
    assert client.completions.create(prompt=prompt, **GREEDY).choices[0].text == expected


def test_ours_by_bls_gives_the_golden_answers(
    forced: tuple[RunningServer, openai.OpenAI], client: openai.OpenAI
) -> None:
    server, by_bls = forced
    assert "prompts of tensorrt_llm are prepared by BLS calls" in server.log_path.read_text(encoding="utf-8")
    answers_are_golden(by_bls)
    banned_words_are_not_said(by_bls)
    for body in ({"messages": QUESTION}, {"prompt": "Héllo 世界 🤷"}, {"prompt": "", "add_special_tokens": True}):
        assert tokens(by_bls, **body) == tokens(client, **body)
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        by_bls.chat.completions.create(messages=QUESTION, extra_body={"reasoning_effort": "much"}, **GREEDY)


def test_the_tensor_of_ours_takes_no_program_and_no_rubbish(forced: tuple[RunningServer, openai.OpenAI]) -> None:
    server, _ = forced
    with grpcclient.InferenceServerClient(server.grpc_url) as triton:
        for payload, message in (
            (msgspec.msgpack.encode({"prompts": ["a"], "chat_template": "{{ 1 }}"}), "'chat_template'"),
            (b"\xc1", "'PROMPT_REQUEST'"),
            (msgspec.msgpack.encode([1]), "'PROMPT_REQUEST'"),
        ):
            with pytest.raises(Exception, match=message):
                triton.infer(
                    "preprocessing",
                    [
                        triton_client.infer_input(name, value, "BYTES")
                        for name, value in (("QUERY", [[b""]]), ("PROMPT_REQUEST", [[payload]]))
                    ],
                )
