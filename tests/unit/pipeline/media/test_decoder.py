"""Decoder processes: what they make of images, and what becomes of them."""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from openai_bls.core.errors import OverloadedError
from openai_bls.pipeline.media import decode_worker
from openai_bls.pipeline.media.decoder import Decoder, Encoded
from openai_bls.pipeline.media.errors import ImageError
from tests.pictures import BAD_FILES, encoded, picture, png_bomb, slow_png
from tests.unit.core_support import WAIT_S

MAX_PIXELS = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    made = Decoder(MAX_PIXELS, 20 * 1024 * 1024, processes=1)
    yield made
    made.close()


async def decoded(decoder: Decoder, data: bytes | str, **options: Any) -> Any:
    taken: list[int] = []
    image = await decoder.decode(Encoded(data, MAX_PIXELS, **options), taken.append)
    assert taken == [len(image.pixels)]
    return image


def noise(mode: str, width: int = 33, height: int = 21) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, (width, height), random.Random(mode).randbytes(width * height * channels))


def expected(image: Image.Image) -> Image.Image:
    """As vLLM has it: upright, on white."""
    image = ImageOps.exif_transpose(image)
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white.convert("RGB")
    return image.convert("RGB")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
async def test_modes(decoder: Decoder, mode: str) -> None:
    if mode == "I;16":
        image = Image.new("I;16", (5, 4), 30_000)
    elif mode == "P":
        image = noise("RGB").quantize(16)
        image.info["transparency"] = 3
    else:
        image = noise("L").convert("1") if mode == "1" else noise(mode)
    data = encoded(image)
    found = await decoded(decoder, data)
    wanted = expected(Image.open(io.BytesIO(data)))
    assert (found.width, found.height) == wanted.size
    assert found.pixels == wanted.tobytes()


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "GIF", "PNG"])
async def test_formats_and_base64(decoder: Decoder, form: str) -> None:
    data = encoded(noise("RGB"), form)
    whole = await decoded(decoder, data)
    assert (whole.width, whole.height, len(whole.uuid)) == (33, 21, 64)
    text = "data:image/x;base64," + base64.b64encode(data).decode()
    assert await decoded(decoder, text, start=text.index(",") + 1) == whole


@pytest.mark.parametrize("orientation", range(1, 9))
async def test_orientation(decoder: Decoder, orientation: int) -> None:
    image = noise("RGB")
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, "PNG", exif=exif)
    found = await decoded(decoder, data)
    wanted = {1: image}.get(orientation) or image.transpose(
        {
            2: Image.Transpose.FLIP_LEFT_RIGHT,
            3: Image.Transpose.ROTATE_180,
            4: Image.Transpose.FLIP_TOP_BOTTOM,
            5: Image.Transpose.TRANSPOSE,
            6: Image.Transpose.ROTATE_270,
            7: Image.Transpose.TRANSVERSE,
            8: Image.Transpose.ROTATE_90,
        }[orientation]
    )
    assert (found.width, found.height, found.pixels) == (*wanted.size, wanted.tobytes())


async def test_low_detail(decoder: Decoder) -> None:
    taken: list[int] = []
    found = await decoder.decode(Encoded(picture(2000, 1000), MAX_PIXELS, side=512), taken.append)
    assert (found.width, found.height, taken) == (512, 256, [3 * 512 * 512])
    small = await decoder.decode(Encoded(picture(20, 10), MAX_PIXELS, side=512), taken.append)
    assert (small.width, small.height) == (20, 10)


async def test_equal_images_have_one_hash(decoder: Decoder) -> None:
    one = await decoded(decoder, picture(form="PNG"))
    assert (
        one.uuid
        == (await decoded(decoder, encoded(Image.new("RGB", (4, 3), (200, 30, 10)), "WEBP", lossless=True))).uuid
    )
    others = [picture(3, 4), picture(color=(200, 30, 11)), picture(4, 4)]
    assert len({one.uuid, *[(await decoded(decoder, data)).uuid for data in others]}) == 4


@pytest.mark.parametrize("name", BAD_FILES)
async def test_bad_files(decoder: Decoder, name: str) -> None:
    data, code = BAD_FILES[name]
    with pytest.raises(ImageError) as caught:
        await decoded(decoder, data)
    assert caught.value.code == code
    # The same process goes on.
    assert (await decoded(decoder, picture())).width == 4
    assert len(decoder.pids) == 1


@pytest.mark.parametrize(
    "text", ["AAA", "A=AA", "äöü", "not base64!", "%2B%2B", "AAAA%4", "AAAA%zz==", "AAAA\v", "AA\\u0041A"]
)
async def test_bad_base64(decoder: Decoder, text: str) -> None:
    with pytest.raises(ImageError) as caught:
        await decoded(decoder, text)
    assert caught.value.code == "invalid_base64_image"


async def test_a_bomb_takes_no_more_memory_than_its_image(decoder: Decoder) -> None:
    found = await decoded(decoder, png_bomb())
    assert len(found.pixels) == 3 * 4000 * 4000
    async with asyncio.timeout(WAIT_S):
        # It has written the last byte before it frees them.
        while resident_bytes(decoder.pids[0]) > 60 * 1024 * 1024:
            await asyncio.sleep(0.01)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_process_that_dies_is_replaced() -> None:
    decoder = Decoder(MAX_PIXELS, 1 << 20, processes=1)
    try:
        await decoded(decoder, picture())
        (first,) = decoder.pids
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ImageError) as caught:
            await decoded(decoder, picture())
        assert caught.value.code == "image_parse_error"
        assert (await decoded(decoder, picture())).height == 3
        assert first not in decoder.pids
    finally:
        decoder.close()


async def test_one_that_takes_too_long_is_killed() -> None:
    decoder = Decoder(MAX_PIXELS, 1 << 20, processes=1, time_limit_s=0.2)

    def slow(size: int) -> None:
        # The limit runs out while the process waits for word on its size.
        os.waitid(os.P_PID, decoder.pids[0], os.WEXITED | os.WNOWAIT)

    try:
        with pytest.raises(ImageError) as caught:
            await decoder.decode(Encoded(picture(), MAX_PIXELS), slow)
        assert caught.value.code == "image_parse_error"
    finally:
        decoder.close()


async def test_limits_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # So little memory that an image of this size cannot be decoded.
    monkeypatch.setattr("openai_bls.pipeline.media.decoder.BASE_BYTES", 64 * 1024 * 1024)
    monkeypatch.setattr("openai_bls.pipeline.media.decoder.BYTES_PER_PIXEL", 0)
    decoder = Decoder(MAX_PIXELS, 1 << 20, processes=1)
    try:
        with pytest.raises(ImageError) as caught:
            await decoded(decoder, picture(4000, 4000))
        assert "memory" in caught.value.fault
        environment = Path(f"/proc/{decoder.pids[0]}/environ").read_bytes()
        assert {entry.split(b"=")[0] for entry in environment.split(b"\0") if entry} <= {
            *(b"PATH", b"LD_LIBRARY_PATH", b"MALLOC_MMAP_THRESHOLD_", b"OMP_NUM_THREADS")
        }
    finally:
        decoder.close()


async def test_without_room_the_pixels_are_not_decoded(decoder: Decoder) -> None:
    def full(size: int) -> None:
        raise OverloadedError(f"no room for {size}")

    with pytest.raises(OverloadedError, match="no room for 36"):
        await decoder.decode(Encoded(picture(), MAX_PIXELS), full)
    assert (await decoded(decoder, picture())).width == 4


async def test_a_key_s_images_are_not_another_s_wait() -> None:
    # Six requests of four images each, of which every one of the first key's comes before the second key's only one.
    decoder = Decoder(MAX_PIXELS, 1 << 20, processes=1)
    go, order = threading.Event(), []

    def reserve(key: str, size: int) -> None:
        order.append(key)
        go.wait(WAIT_S)

    async def decode(key: str, data: bytes) -> None:
        await decoder.decode(Encoded(data, MAX_PIXELS), functools.partial(reserve, key), key)

    try:
        large = asyncio.gather(*[decode("alice", picture(300, 300)) for _ in range(24)])
        async with asyncio.timeout(WAIT_S):
            while not order:
                await asyncio.sleep(0.01)
        small = asyncio.create_task(decode("bob", picture()))
        await asyncio.sleep(0)
        go.set()
        await small
        assert order[:2] == ["alice", "bob"]
        large.cancel()
    finally:
        decoder.close()


async def test_of_several_keys_one_leaves_a_process_to_others() -> None:
    """However long its images take."""
    decoder = Decoder(MAX_PIXELS, 1 << 20, several=lambda: True)
    go, begun = threading.Event(), threading.Event()

    def held(size: int) -> None:
        begun.set()
        go.wait(WAIT_S)

    try:
        hers = [asyncio.create_task(decoder.decode(Encoded(picture(), MAX_PIXELS), held, "alice")) for _ in range(4)]
        await asyncio.to_thread(begun.wait, WAIT_S)
        assert (await decoder.decode(Encoded(picture(), MAX_PIXELS), lambda size: None, "bob")).width == 4
        assert not any(one.done() for one in hers)
        go.set()
        await asyncio.gather(*hers)
    finally:
        decoder.close()


@pytest.mark.parametrize("chunks", [0, 1, 1000])
async def test_chunks_that_nobody_knows(decoder: Decoder, chunks: int) -> None:
    assert (await decoded(decoder, slow_png(chunks))).width == 1


def test_the_script_needs_nothing_of_ours() -> None:
    lines = Path(decode_worker.__file__).read_text().splitlines()
    assert not [line for line in lines if line.lstrip().startswith(("import ", "from ")) and "openai_bls" in line]
