"""Large images in bodies: their base64 is never decoded as JSON, and whatever else is long stays as it came."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from openai_bls.api.batches import lines
from openai_bls.api.common.lifted import lifted, lifted_body
from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.triton_models.openai_bls.generate_extension import assemble_lifted
from tests.pictures import data_uri, encoded
from tests.unit.core_support import EOS, FakeSink, request_context
from tests.unit.pipeline.media.test_images_of_requests import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TEXT,
    Place,
    chat,
    image,
    place,
    seeing,
)

__all__ = ["place"]

NOISE = random.Random(1).randbytes(3 * 300 * 300)


def noise(seed: int = 0) -> bytes:
    """A picture whose file is large."""
    from PIL import Image

    return encoded(Image.frombytes("RGB", (300, 300), NOISE[seed:] + NOISE[:seed]))


FILE = noise()
URI = data_uri(FILE)
BASE64 = URI.partition(",")[2]
LONG = "A" * 100_000


def anthropic(data: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return {
        "model": "tiny",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "image", "source": source}, TEXT]}],
    }


def small(text: bytes) -> int:
    return len(lifted_body(text).body)


@pytest.mark.parametrize(
    "body",
    [
        chat(image(URI), TEXT),
        chat(image(URI.replace("data:", "DATA:")), TEXT, image(data_uri(noise(1)))),
        anthropic(BASE64),
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URI}]}]},
    ],
)
def test_what_is_decoded_is_small(body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    assert small(text) < 600 < len(text)


@pytest.mark.parametrize(
    "body",
    [
        chat({"type": "text", "text": "word " * 20_000}),
        chat({"type": "text", "text": LONG + "é"}),
        {"input": list(range(30_000))},
        {"a": LONG[:1000]},
    ],
)
def test_what_is_no_base64_stays(body: dict[str, Any]) -> None:
    text = json.dumps(body, ensure_ascii=False).encode()
    assert lifted(text) == (text, {})


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": "%s", "b": ["%s", 1]}',
        b'{"%s": "%s"}',
        b'{"a": "it says \\"%s", "b": "%s"}',
        b'{"a": "%s\\"", "b": "%s\\n"}',
        b'["%s" , "data:image/png;base64,%s"]',
    ],
)
def test_marks_mean_what_they_stand_for(text: bytes) -> None:
    whole = text % (LONG.encode(), LONG.replace("A", "B").encode())
    found, parts = lifted(whole)
    if b'\\"", ' not in text:
        assert len(parts) == 2
    for mark, part in parts.items():
        found = found.replace(mark.encode(), part)
    assert found == whole


@pytest.mark.parametrize("text", [b'{"a": "%s', b'"%s"%s"', b'{"a": "%s" "%s"}', b'%s"%s"'])
def test_what_is_no_json_stays_none(text: bytes) -> None:
    count = text.count(b"%s")
    found, _ = lifted(text % ((LONG.encode(),) * count))
    for one in (found, text % ((LONG.encode(),) * count)):
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(one)


async def test_large_images_of_all_apis(place: Place) -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": anthropic(BASE64)["messages"][0]["content"]}
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [block]},
    ]
    tool = {"name": "f", "input_schema": {"type": "object"}}
    for path, body in (
        (CHAT, chat(image(URI), TEXT)),
        ("/v2/models/openai_bls/generate", chat(image(URI), TEXT)),
        (MESSAGES, anthropic(BASE64)),
        (MESSAGES, {**anthropic(BASE64), "messages": messages, "tools": [tool]}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URI}]}]}),
    ):
        await place.answered(path, body)
        (found,) = place.media.images
        assert found.pixels == NOISE, path
    both = chat(image(URI), TEXT, image(data_uri(noise(3))))
    await place.answered(CHAT, both)
    assert [one.pixels for one in place.media.images] == [NOISE, NOISE[3:] + NOISE[:3]]


def test_lines_of_batches() -> None:
    """The body comes out as it went in, whatever holds base64."""
    line: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    for body in (chat(image(URI), TEXT, image(data_uri(noise(1)))), {"model": "m", "input": LONG}):
        found = lines.parse(json.dumps({**line, "body": body}).encode())
        assert json.loads(bytes(found.body)) == body
    for bad in ({"method": "GET"}, {"custom_id": LONG}, {"url": LONG}):
        with pytest.raises(lines.LineError):
            lines.parse(json.dumps({**line, "body": chat(image(URI)), **bad}).encode())


async def test_on_tritons_endpoints() -> None:
    place = Place(seeing())
    body = chat(image(URI), TEXT)
    for tensors in (
        {"request": [json.dumps(body).encode()]},
        {"messages": [json.dumps(body["messages"]).encode()]},
        {"messages": [json.dumps(body["messages"][0]).encode()]},
    ):
        endpoint, given = assemble_lifted(tensors, {})
        assert len(json.dumps(given.body)) < 600
        assert given.whole() == body
        sink = FakeSink()
        before = len(place.bench.engine.requests)
        asked = asyncio.ensure_future(TRITON_ENTRIES[endpoint](given)(place.bench.service, request_context(), sink))
        while len(place.bench.engine.requests) == before and not asked.done():
            await asyncio.sleep(0.001)
        assert place.media.images[0].pixels == NOISE
        place.bench.engine.deliver(before, "red", "stop", stop_token_id=EOS)
        assert isinstance(await asked, bytes)
    place.bench.service.close()


async def test_base64_elsewhere_is_a_text_like_any_other() -> None:
    place = Place(seeing(max_model_len=200_000))
    await place.answered(CHAT, chat(image(URI), {"type": "text", "text": LONG}, max_tokens=1))
    assert LONG in str(place.bench.prompts.requests[-1].messages)
    answer = await place.answered(CHAT, {**chat(TEXT), "metadata": {"a": "b"}, "user": URI[:64]})
    assert answer["choices"]
    for path, body, param in (
        (CHAT, chat(image(BASE64)), "messages[0].content[0].image_url"),
        (CHAT, {**chat(image(URI)), "model": LONG}, "model"),
        (CHAT, {**chat(image(URI)), LONG: 1}, LONG),
        (CHAT, chat(image(data_uri(b""), detail=LONG)), "messages[0].content[0].image_url.detail"),
    ):
        error = await place.refused(path, body, 404 if param == "model" else 400)
        assert error["param"][:99] == param[:99]
    place.bench.service.close()


async def test_bad_base64_and_files_too_large_are_refused_as_small_ones_are() -> None:
    place = Place(seeing(), max_image_bytes=len(FILE) // 2)
    error = await place.refused(CHAT, chat(image(URI)))
    assert error["code"] == "image_file_too_large"
    place.bench.service.close()
    place = Place(seeing())
    for bad in (URI[:-9] + "?" + URI[-8:], URI[:50_000] + "\v" + URI[50_000:]):
        error = await place.refused(CHAT, chat(image(bad)))
        assert (error["code"], error["param"]) == ("invalid_base64_image", "messages[0].content[0].image_url")
    place.bench.service.close()
