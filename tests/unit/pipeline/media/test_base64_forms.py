"""Base64 as people have it, wherever it comes in: in lines, with line ends of any kind, with the escapes of a URL."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from openai_bls.pipeline.media.decode_worker import from_base64
from tests.pictures import encoded
from tests.unit.pipeline.media.test_images_of_requests import CHAT, MESSAGES, RESPONSES, Place, chat, image, seeing

SPACE = ("\n", "\r\n", " ", "\t")
FORMS: dict[str, Callable[[str], str]] = {
    "base64 FILE": lambda text: "".join(f"{line}\n" for line in lines(text, 76)),
    "MIME": lambda text: "\r\n".join(lines(text, 76)),
    "PEM": lambda text: "\n".join(lines(text, 64)),
    "a line end": lambda text: text + "\n",
    "a URL": lambda text: text.replace("+", "%2B").replace("/", "%2F").replace("=", "%3d"),
    "lines in a URL": lambda text: "%0D%0A".join(lines(text, 76)),
}


def lines(text: str, width: int) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)]


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, str]:
    """Bytes, and base64 of them with white space and escapes anywhere."""
    data = draw(st.binary(max_size=60))
    pieces = []
    for character in base64.b64encode(data).decode():
        escaped = draw(st.sampled_from([character] * 4 + [f"%{ord(character):02x}", f"%{ord(character):02X}"]))
        pieces.append(draw(st.sampled_from(["", "", "", *SPACE])) + escaped)
    return data, "".join(pieces) + draw(st.sampled_from(["", *SPACE, "%0a"]))


@given(written(), st.booleans())
def test_it_is_read_as_it_was_meant(both: tuple[bytes, str], raw: bool) -> None:
    data, text = both
    # As it stands in JSON, with slashes as PHP writes them, and as JSON means it.
    text = json.dumps(text)[1:-1].replace("/", "\\/") if raw else text
    assert from_base64(text.encode()) == data


@given(
    st.binary(min_size=1, max_size=60),
    st.sampled_from(["*", "%", "%4", "%zz", "\\x", "\\u0041", "\0", "=A"]),
    st.data(),
)
def test_nothing_else_is_taken(data: bytes, wrong: str, drawn: st.DataObject) -> None:
    text = base64.b64encode(data).decode().rstrip("=")
    at = drawn.draw(st.integers(0, len(text)))
    with pytest.raises(binascii.Error):
        # A percent sign before two digits would be an escape.
        from_base64((text[:at] + wrong + ("*" if wrong.startswith("%") else "") + text[at:]).encode())


NOISE = random.Random(2).randbytes(3 * 150 * 150)
SMALL = encoded(Image.frombytes("RGB", (5, 5), NOISE[:75]))
LARGE = encoded(Image.frombytes("RGB", (150, 150), NOISE))


def bodies(text: str) -> list[tuple[str, dict[str, Any]]]:
    url = f"data:image/png;base64,{text}"
    source = {"type": "base64", "media_type": "image/png", "data": text}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    return [
        (CHAT, chat(image(url))),
        ("/v2/models/openai_bls/generate", chat(image(url, detail="original"))),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
        (MESSAGES, {"model": "tiny", "max_tokens": 5, "messages": messages}),
    ]


async def test_images_of_all_apis() -> None:
    place = Place(seeing())
    for form, (size, data) in itertools.product(FORMS, ((75, SMALL), (len(NOISE), LARGE))):
        for path, body in bodies(FORMS[form](base64.b64encode(data).decode())):
            await place.answered(path, body)
            assert place.media.images[0].pixels == NOISE[:size], (form, path)
    place.bench.service.close()


async def test_the_bound_is_that_of_the_image() -> None:
    for less in (0, 1):
        place = Place(seeing(), max_image_bytes=len(LARGE) - less)
        for form in FORMS.values():
            for path, body in bodies(form(base64.b64encode(LARGE).decode())):
                if less and path != MESSAGES:
                    assert (await place.refused(path, body))["code"] == "image_file_too_large"
                elif not less:
                    await place.answered(path, body)
        place.bench.service.close()
