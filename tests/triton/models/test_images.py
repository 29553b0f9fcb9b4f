"""Images on a real server: bad ones are refused by name on every door, and cost nobody else time or memory.

The engine is the null engine, which is told that its model takes images.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from openai_bls.core.processes.process_tree import descendants
from openai_bls.launcher.testing import RunningServer, run_server
from openai_bls.pipeline.media.fetch import MAX_FETCHES_PER_HOST
from tests.fakes.image_host import ImageHost, ok, redirect
from tests.pictures import BAD_FILES, HTML, data_uri, picture, png, png_bomb
from tests.triton import triton_client
from tests.triton.conversations import HELLO
from tests.triton.triton_client import TritonError
from tests.waiting import until

pytestmark = pytest.mark.triton

MAX_IMAGES = 4
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def host() -> Iterator[ImageHost]:
    """A host of images, in a thread."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(ImageHost.running()) as running:
        running.answers = {
            "/html": ok(HTML),
            "/metadata": redirect("http://169.254.169.254/latest/meta-data/"),
            "/large": ok(bytes(21 * MIB)),
        }
        yield running


@pytest.fixture(scope="module")
def server(repository: Path, host: ImageHost) -> Iterator[RunningServer]:
    env = {
        "OPENAI_BLS_ENGINE": "null",
        "OPENAI_BLS_ENGINE_NULL_MAX_IMAGES": str(MAX_IMAGES),
        "OPENAI_BLS_IMAGE_URL_HOSTS": "*",
        "OPENAI_BLS_IMAGE_URL_PRIVATE_HOSTS": f"127.0.0.1:{host.port}",
        # No test waits for it.
        "OPENAI_BLS_IMAGE_TIMEOUT_S": "600",
    }
    with run_server(repository, env=env) as running:
        yield running


def body(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, *parts]}], "max_tokens": 5}


def post(server: RunningServer, sent: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.openai_url}/chat/completions", json=sent, timeout=600)


def refused(server: RunningServer, *urls: str) -> dict[str, Any]:
    """The error of a request, of which the last image is bad."""
    response = post(server, body(*urls))
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["param"] == f"messages[0].content[{len(urls)}].image_url"
    return error


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(server: RunningServer, name: str) -> None:
    """The same error on /v1, on generate and on gRPC."""
    data, code = BAD_FILES[name]
    url = data_uri(data)
    error = refused(server, url)
    assert error["code"] == code
    text = json.dumps(body(url))
    with pytest.raises(TritonError) as caught:
        triton_client.chat(server.http_url, {"request": text})
    assert caught.value.body == {"error": error}
    with pytest.raises(TritonError) as caught:
        triton_client.grpc_chat(server.grpc_url, [triton_client.infer_input("request", [text], "BYTES")], {})
    assert caught.value.body == {"error": error}


def test_bad_places(server: RunningServer, host: ImageHost) -> None:
    url = f"http://127.0.0.1:{host.port}"
    codes = {
        f"{url}/html": "unsupported_image_media_type",
        f"{url}/missing": "failed_to_download_image",
        f"{url}/metadata": "invalid_image_url",
        f"{url}/large": "image_file_too_large",
        **dict.fromkeys(
            (
                *("http://169.254.169.254/latest/meta-data/", "http://[::ffff:169.254.169.254]/", "http://localhost/"),
                *("file:///etc/passwd", "/etc/passwd", f"http://127.0.0.1:{server.ports.http}/v2"),
            ),
            "invalid_image_url",
        ),
    }
    assert {place: refused(server, data_uri(picture()), place)["code"] for place in codes} == codes


def test_a_thousand_images_and_too_many_bytes(server: RunningServer) -> None:
    many = post(server, body(*[data_uri(picture())] * 1000))
    error = many.json()["error"]
    assert (many.status_code, error["code"]) == (400, "too_many_images")
    assert error["param"] == f"messages[0].content[{MAX_IMAGES + 1}].image_url"
    text = json.dumps(body("data:image/png;base64,@")).encode()
    before, after = text.split(b"@")

    def pieces() -> Iterator[bytes]:
        yield before
        for _ in range(200):
            yield b"A" * MIB
        yield after

    headers = {"content-type": "application/json", "content-length": str(len(text) - 1 + 200 * MIB)}
    try:
        response = httpx.post(f"{server.openai_url}/chat/completions", content=pieces(), headers=headers, timeout=60)
        assert response.status_code == 413
    except httpx.WriteError:
        # A stranger may be hung up on while it still sends.
        pass


def test_slow_hosts_delay_their_own_requests_alone(server: RunningServer, host: ImageHost) -> None:
    """The host goes on when all others have their answers."""
    released = threading.Event()

    async def hold(_: asyncio.StreamWriter) -> None:
        while not released.is_set():
            await asyncio.sleep(0.01)

    def ask(sent: dict[str, Any]) -> int:
        return post(server, sent).status_code

    host.answers["/held"] = hold
    with ThreadPoolExecutor(32) as pool:
        held = [pool.submit(ask, body(f"http://127.0.0.1:{host.port}/held")) for _ in range(12)]
        try:
            until(lambda: host.open >= MAX_FETCHES_PER_HOST)
            text = [pool.submit(ask, {"messages": HELLO, "max_tokens": 5}) for _ in range(8)]
            bad = [pool.submit(ask, body(data_uri(b"x"))) for _ in range(8)]
            assert [one.result() for one in text] == [200] * 8
            assert [one.result() for one in bad] == [400] * 8
            assert not any(one.done() for one in held)
        finally:
            released.set()
        assert [one.result() for one in held] == [400] * 12


def openai_bls_pid(server: RunningServer) -> int:
    (pid,) = [
        pid
        for pid in descendants(server.pid)
        if "/openai_bls/1/model.py\0" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    ]
    return pid


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def decoders(pid: int) -> list[int]:
    return [
        child
        for child in descendants(pid)
        if "decode_worker.py" in Path(f"/proc/{child}/cmdline").read_text(errors="replace")
    ]


def test_memory_comes_back(server: RunningServer) -> None:
    """Large bodies, bombs and images that are decoded whole before the one after them is refused."""
    pid = openai_bls_pid(server)
    large = data_uri(png(16, 16, bytes(19 * MIB)))
    bomb, noise = data_uri(png_bomb()), data_uri(b"x")

    def round_of_them() -> None:
        with ThreadPoolExecutor(4) as pool:
            sent = [body(large), body(bomb, noise), body(bomb, bomb, noise), body(large)]
            assert {response.status_code for response in pool.map(lambda one: post(server, one), sent)} <= {400, 503}

    round_of_them()
    until(lambda: resident_mb(pid) < 300, 30)
    before = resident_mb(pid)
    round_of_them()
    until(lambda: resident_mb(pid) < before + 50, 30)
    found = decoders(pid)
    assert 1 <= len(found) <= 2
    assert all(resident_mb(decoder) < 100 for decoder in found)


def test_the_server_is_unharmed(server: RunningServer) -> None:
    pid = openai_bls_pid(server)
    for decoder in decoders(pid):
        # As an image that breaks a decoder would.
        os.kill(decoder, signal.SIGKILL)
    errors = [refused(server, data_uri(b"x"))["code"] for _ in range(4)]
    assert errors[-1] == "unsupported_image_media_type"
    assert post(server, {"messages": HELLO, "max_tokens": 5}).status_code == 200
    card = httpx.get(f"{server.openai_url}/models").json()["data"][0]
    assert card["input_modalities"] == ["text", "image"]
    log = server.log_path.read_text(errors="replace")
    assert "Traceback" not in log
    assert "base64" not in log
