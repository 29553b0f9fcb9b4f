"""Images of requests, from the body to the engine: on a fake engine, with a real decoder."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette

from openai_bls.api.app import create_app
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.engine_types import EngineInfo, PromptResult
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.media import Image, ImageSource, MediaPrompt
from openai_bls.core.request import ValidRequest
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.media.loader import ImageLoader
from tests.fakes.image_host import ImageHost, drips, ok
from tests.pictures import BAD_FILES, data_uri, picture
from tests.unit.core_support import EOS, WAIT_S, Answered, Bench, ask, engine_info, token_ids, until

RED, BLUE = picture(color=(255, 0, 0)), picture(2, 5, (0, 0, 255))
TEXT = {"type": "text", "text": "What?"}


def seeing(**changes: Any) -> EngineInfo:
    return engine_info(input_modalities=("text", "image"), max_images=3, **changes)


def image(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def chat(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **fields}


class Place:
    """A server in process whose model takes images."""

    def __init__(self, info: EngineInfo | None = None, **settings: Any) -> None:
        self.bench = Bench(info or seeing(), **settings)
        loop = asyncio.get_running_loop()
        self.app: Starlette = create_app(self.bench.service, WriteBatcher(loop))
        self.images = self.bench.service.images

    async def post(self, path: str, body: dict[str, Any]) -> Answered:
        """The answer, of which the model writes one word."""
        asked = asyncio.ensure_future(ask(self.app, "POST", path, body, [("content-type", "application/json")]))
        engine = self.bench.engine
        before = len(engine.requests)
        while not asked.done() and len(engine.requests) == before:
            await asyncio.sleep(0.001)
        if len(engine.requests) > before:
            engine.deliver(before, "red", "stop", stop_token_id=EOS)
        return await asyncio.wait_for(asked, WAIT_S)

    async def answered(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.post(path, body)
        assert answer.status == 200, answer.body
        assert self.images.budget.held == 0
        return answer.json()

    async def refused(self, path: str, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
        before = len(self.bench.engine.requests)
        answer = await self.post(path, body)
        assert answer.status == status, answer.body
        assert len(self.bench.engine.requests) == before
        error: dict[str, Any] = answer.json()["error"]
        return error

    @property
    def media(self) -> MediaPrompt:
        """What the engine has got last."""
        media = self.bench.engine.requests[-1].media
        assert media is not None
        return media


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    made.bench.service.close()


def pixels(*images: Image) -> list[tuple[int, int, bytes]]:
    return [(one.width, one.height, one.pixels[:3]) for one in images]


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SEEN = [(4, 3, b"\xff\0\0"), (2, 5, b"\0\0\xff")]


async def test_chat(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = [RequestContext()]
    monkeypatch.setattr(place.bench.service.observer, "begin", lambda *_: contexts[0])
    body = chat(image(data_uri(RED)), TEXT, image(data_uri(BLUE), detail="low"), n=2)
    asked = asyncio.ensure_future(ask(place.app, "POST", CHAT, body))
    while len(place.bench.engine.requests) < 2:
        await asyncio.sleep(0.001)
    # Of both choices.
    assert place.images.budget.held == 3 * (12 + 10)
    for at in range(2):
        place.bench.engine.deliver(at, "red", "stop", stop_token_id=EOS)
    answer = (await asked).json()
    assert place.images.budget.held == 0
    assert answer["usage"]["prompt_tokens"] == 3 + len("What?") + 5
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "image_tokens": 8}
    assert pixels(*place.media.images) == SEEN
    assert place.media.text == "<tool_call>What?<tool_call>"
    assert place.media.token_ids == tuple(token_ids(place.media.text))
    request = place.bench.prompts.requests[-1]
    assert request.image_sizes == [(4, 3), (2, 5)]
    # Logs and traces are not given it.
    assert contexts[0].request is not None
    assert contexts[0].request.images == ()
    text_only = await place.answered(CHAT, chat(TEXT))
    assert text_only["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert place.bench.engine.requests[-1].media is None


async def test_responses_and_what_continues_them(place: Place) -> None:
    large = data_uri(picture(64, 64, (9, 9, 9)) + bytes(8000))
    parts = [{"type": "input_image", "image_url": large}, {"type": "input_text", "text": "What?"}]
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": [{**parts[0], "image_url": data_uri(BLUE)}]}
    first = await place.answered(RESPONSES, {"input": [{"role": "user", "content": parts}, call, output]})
    assert first["usage"]["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0, "image_tokens": 69}
    assert pixels(*place.media.images) == [(64, 64, b"\x09\x09\x09"), SEEN[1]]
    following = await place.answered(RESPONSES, {"input": "And now?", "previous_response_id": first["id"]})
    assert following["usage"]["input_tokens_details"]["image_tokens"] == 69
    listed = await ask(place.app, "GET", f"{RESPONSES}/{first['id']}/input_items")
    assert listed.json()["data"][-1]["content"][0]["image_url"] == large
    count = await place.post(f"{RESPONSES}/input_tokens", {"input": [{"role": "user", "content": parts}]})
    assert count.json()["input_tokens"] == 64 + len("What?")
    assert place.images.budget.held == 0
    error = await place.refused(
        RESPONSES, {"input": [{"role": "user", "content": [{**parts[0], "image_url": "data:,"}]}]}
    )
    assert (error["param"], error["code"]) == ("input[0].content[0]", "invalid_image_url")
    assert "'input[0].content[0]' " in error["message"]


async def test_messages(place: Place) -> None:
    def block(data: bytes) -> dict[str, Any]:
        source = data_uri(data).partition(",")[2]
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": source}}

    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [TEXT, block(BLUE)]}
    body: dict[str, Any] = {
        **{"model": "tiny", "max_tokens": 9, "system": "Be brief."},
        "messages": [
            {"role": "user", "content": [block(RED), TEXT]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
    }
    answer = await place.answered(MESSAGES, body)
    assert answer["usage"]["input_tokens"] == len(place.bench.engine.requests[-1].prompt_token_ids)
    assert pixels(*place.media.images) == SEEN
    body["messages"][2]["content"][0]["content"][1] = block(b"x")
    refused = await place.post(MESSAGES, body)
    assert refused.status == 400
    assert "'messages.2.content.0.content.1'" in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", BAD_FILES)
async def test_bad_files_are_refused_by_name(place: Place, name: str) -> None:
    data, code = BAD_FILES[name]
    error = await place.refused(CHAT, chat(TEXT, image(data_uri(RED)), image(data_uri(data))))
    assert (error["param"], error["code"]) == ("messages[0].content[2].image_url", code)
    assert place.images.budget.held == 0


@pytest.mark.parametrize(
    "url", ["data:image/png,abc", "data:image/png;base64", "data:;base64,%%", "ftp://a/b", "x.png", ""]
)
async def test_bad_urls(place: Place, url: str) -> None:
    assert (await place.refused(CHAT, chat(image(url))))["param"] == "messages[0].content[0].image_url"


async def test_what_images_do_not_go_with(place: Place) -> None:
    many = await place.refused(CHAT, chat(*[image("data:")] * 1000))
    assert (many["param"], many["code"]) == ("messages[0].content[3].image_url", "too_many_images")
    cut = await place.refused(CHAT, chat(image(data_uri(RED)), truncate_prompt_tokens=3))
    assert cut["param"] == "truncate_prompt_tokens"
    # The context is that of the prompt with its images in it.
    tall = await place.refused(CHAT, chat(image(data_uri(picture(1, 1000)))))
    assert tall["code"] == "context_length_exceeded"
    assert place.images.budget.held == 0


async def test_a_model_of_text_refuses_at_once() -> None:
    place = Place(engine_info())
    for path, body, param in (
        (CHAT, chat(TEXT, image("https://images.test/x")), "messages[0].content[1].image_url"),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ("/tokenize", chat(image("data:")), "messages[0].content[0].image_url"),
    ):
        error = await place.refused(path, body)
        assert (error["param"], error["code"]) == (param, "unsupported_content")
    assert place.bench.prompts.requests == []
    assert place.images.decoder.pids == []
    place.bench.service.close()


async def test_fetched_images() -> None:
    async with ImageHost.running() as host:
        host.answers = {"/red": ok(RED), "/html": ok(b"<html>"), "/slow": drips}
        hosts, url = f"127.0.0.1:{host.port}", f"http://127.0.0.1:{host.port}"
        place = Place(image_url_private_hosts=hosts)
        await place.answered(CHAT, chat(image(f"{url}/red"), image(data_uri(BLUE))))
        assert pixels(*place.media.images) == SEEN
        # A short time for the slow one alone: on a busy machine the others may not come in it.
        impatient = Place(image_url_private_hosts=hosts, image_timeout_s=0.3)
        for at, path, code in (
            (place, "html", "unsupported_image_media_type"),
            (impatient, "slow", "failed_to_download_image"),
        ):
            error = await at.refused(CHAT, chat(image(data_uri(RED)), image(f"{url}/{path}")))
            assert (error["param"], error["code"]) == ("messages[0].content[1].image_url", code)
            assert at.images.budget.held == 0
            at.bench.service.close()


async def test_what_preprocessing_and_the_engine_refuse_names_the_part(place: Place) -> None:
    url = data_uri(RED)
    part = {"type": "input_image", "image_url": url}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}}
    bodies: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, chat(TEXT, image(url), image(url)), "messages[0].content[{}].image_url"),
        (RESPONSES, {"input": [{"role": "user", "content": [part] * 3}]}, "input[0].content[{}]"),
        (f"{RESPONSES}/input_tokens", {"input": [{"role": "user", "content": [part] * 3}]}, "input[0].content[{}]"),
    ]
    place.bench.prompts.result = PromptResult(
        error="'images[1]' is too small", param="images[1]", code="image_too_small"
    )
    for path, body, param in bodies:
        error = await place.refused(path, body)
        assert (error["param"], error["code"]) == (param.format(2 if path == CHAT else 1), "image_too_small")
    message = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": [TEXT, block, block]}]}
    assert "messages.0.content.2" in (await place.refused(MESSAGES, message))["message"]
    place.bench.prompts.result = None
    for path, body, param in bodies[:2]:
        before = len(place.bench.engine.requests)
        asked = asyncio.ensure_future(ask(place.app, "POST", path, body))
        await until(lambda: len(place.bench.engine.requests) > before)  # noqa: B023
        place.bench.engine.deliver(before, "", "error", error="an aspect ratio", invalid=True)
        error = (await asked).json()["error"]
        assert (error["param"], error["code"]) == (param.format(1 if path == CHAT else 0), "invalid_image")


async def test_uploaded_files(tmp_path: Any) -> None:
    place = Place(batches_dir=str(tmp_path))
    form = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + RED + b"\r\n--x--\r\n"
    )
    sent = await ask(place.app, "POST", "/v1/files", form, [("content-type", "multipart/form-data; boundary=x")])
    file_id = sent.json()["id"]
    await place.answered(CHAT, chat({"type": "image_url", "image_url": {"file_id": file_id}}))
    assert pixels(*place.media.images) == SEEN[:1]
    await place.answered(
        RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": file_id}]}]}
    )
    source = {"type": "file", "file_id": file_id}
    message = {"role": "user", "content": [{"type": "image", "source": source}]}
    await place.answered(MESSAGES, {"model": "tiny", "max_tokens": 9, "messages": [message]})
    batch = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    assert (await place.post("/v1/batches", batch)).json()["error"]["param"] == "input_file_id"
    for missing in ("file-" + "0" * 32, "../../etc/passwd"):
        error = await place.refused(CHAT, chat({"type": "image_url", "image_url": {"file_id": missing}}))
        assert error["code"] == "image_file_not_found"
    place.bench.service.close()


async def test_slow_uploaded_files_of_one_key_let_another_pass() -> None:
    loader = ImageLoader(OpenAiBlsSettings())
    go_on = threading.Event()

    def missing(file_id: str, key: str) -> None:
        assert key == "b" or go_on.wait(WAIT_S)

    loader.uploaded = missing
    source = ImageSource("", "messages", file_id="file")

    async def code(key: str) -> str | None:
        with loader.budget.lease(key) as lease, pytest.raises(InvalidRequestError) as error:
            await loader.load((source,), key, lease)
        return error.value.code

    # More than there are threads of asyncio's.
    slow = [asyncio.ensure_future(code("a")) for _ in range(40)]
    await asyncio.sleep(0)
    assert await code("b") == "image_file_not_found"
    assert not any(each.done() for each in slow)
    go_on.set()
    assert set(await asyncio.gather(*slow)) == {"image_file_not_found"}
    loader.close()


async def test_no_more_than_there_is_memory_for() -> None:
    place = Place(max_image_memory_bytes=100, max_image_bytes=1000, max_image_pixels=100)
    error = await place.refused(CHAT, chat(*[image(data_uri(RED))] * 3), 503)
    assert "max_image_memory_bytes" in error["message"]
    assert (await place.refused(CHAT, chat(image(data_uri(picture(11, 10))))))["code"] == "image_too_large"
    assert (await place.refused(CHAT, chat(image(data_uri(RED + bytes(1000))))))["code"] == "image_file_too_large"
    assert place.images.budget.held == 0
    await place.answered(CHAT, chat(image(data_uri(RED))))
    place.bench.service.close()


async def test_a_cancelled_request_gives_back_what_it_had(place: Place) -> None:
    place.bench.prompts.hold = asyncio.get_running_loop().create_future()
    asked = asyncio.ensure_future(ask(place.app, "POST", CHAT, chat(image(data_uri(RED)))))
    while not place.bench.prompts.requests:
        await asyncio.sleep(0.001)
    assert place.images.budget.held == 36
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert place.images.budget.held == 0


async def test_cards_say_what_a_model_takes(place: Place) -> None:
    (card, _) = (await ask(place.app, "GET", "/v1/models")).json()["data"]
    assert card["input_modalities"] == ["text", "image"]


async def test_a_refused_request_leaves_nothing_behind(place: Place) -> None:
    """Not even until the next garbage collection."""
    bad = {"type": "input_image", "image_url": data_uri(b"x" * 100_000)}

    def kept() -> list[object]:
        # `isinstance` would ask each object of the process for its class, some of which warn.
        return [one for one in gc.get_objects() if issubclass(type(one), ValidRequest | InvalidRequestError)]

    gc.collect()
    gc.disable()
    try:
        # Other tests of this process may have kept some.
        before = {id(one) for one in kept()}
        await place.refused(CHAT, chat(image(bad["image_url"])))
        await place.refused(RESPONSES, {"input": [{"role": "user", "content": [bad]}]})
        await asyncio.sleep(0)
        assert [one for one in kept() if id(one) not in before] == []
    finally:
        gc.enable()


async def test_requests_without_images_cost_the_same_where_a_model_takes_some() -> None:
    """By the bytecode that is run for one. The least of several: an answer in more pieces takes more."""

    async def instructions(info: EngineInfo) -> int:
        place = Place(info)
        count = 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal count
            if "/openai_bls/" not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return trace

        counts = []
        before = sys.gettrace()
        for _ in range(10):
            count = 0
            sys.settrace(trace)
            try:
                await place.answered(CHAT, chat(TEXT))
            finally:
                sys.settrace(before)
            counts.append(count)
        place.bench.service.close()
        return min(counts)

    blind, sees = await instructions(engine_info()), await instructions(seeing())
    assert blind > 1000
    assert sees == pytest.approx(blind, rel=0.01)
