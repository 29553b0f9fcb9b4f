"""Attacks by images: hosts that are slow or send their answers in pieces, and small files of large pictures."""

from __future__ import annotations

import contextlib
import functools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

from PIL import Image

from tests.pictures import data_uri, encoded, slow_png
from tests.torture.attacks.alice import Alice
from tests.torture.doors import HOST
from tests.torture.schemas import SEES

_PER_REQUEST = 2
"""Of the model that sees."""
_BLOCK = 64 * 1024
_MOST_PIXELS = 16 << 20
_MANY_CHUNKS, _MOST_CHUNKS = 400_000, 1_700_000
"""Of 12 bytes, up to the largest file."""
_ACCEPT_SECONDS = 0.2


def _request(urls: list[str]) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": SEES, "messages": [{"role": "user", "content": content}], "max_tokens": 1}


# --- hosts ---


def _pieces(path: str) -> Iterator[bytes]:
    """What a host says to a path, without an end."""
    begin = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"
    if path.startswith("/chunks"):
        yield begin + b"Transfer-Encoding: chunked\r\n\r\n"
        yield from repeat(b"1\r\nx\r\n" * (_BLOCK // 6))
    if path.startswith("/extensions"):
        yield begin + b"Transfer-Encoding: chunked\r\n\r\n"
        yield from repeat(b"1;" + b"x" * 60 + b"\r\nx\r\n")
    if path.startswith("/trailers"):
        yield begin + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
        yield from repeat(b"a: b\r\n" * (_BLOCK // 6))
    if path.startswith("/fields"):
        yield begin
        yield from repeat(b"a: b\r\n" * (_BLOCK // 6))
    if path.startswith("/interim"):
        yield from repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * (_BLOCK // 25))


_PATHS = ("/silent", "/chunks", "/extensions", "/trailers", "/fields", "/interim")


def _answer(connection: socket.socket, alice: Alice) -> None:
    with connection, contextlib.suppress(OSError, IndexError):
        connection.settimeout(_ACCEPT_SECONDS)
        head = connection.recv(_BLOCK)
        for piece in _pieces(head.split()[1].decode()):
            while not alice.over():
                with contextlib.suppress(TimeoutError):
                    connection.sendall(piece)
                    break
            if alice.over():
                return
        while not alice.over():
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1):
                    return


@contextlib.contextmanager
def _host(alice: Alice) -> Iterator[str]:
    """A bad host of images, for as long as there is time."""

    def serve() -> None:
        while not alice.over():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                thread = threading.Thread(target=_answer, args=(connection, alice))
                threads.append(thread)
                thread.start()

    threads: list[threading.Thread] = []
    with socket.create_server((HOST, alice.target.host_port), backlog=500) as listener:
        listener.settimeout(_ACCEPT_SECONDS)
        server = threading.Thread(target=serve)
        server.start()
        yield f"http://{HOST}:{alice.target.host_port}"
        server.join()
        for thread in threads:
            thread.join()


def slow_hosts(alice: Alice) -> None:
    """Many images of one host that says nothing, or says it in pieces."""
    with _host(alice) as host:
        paths = alice.rng.choice([("/silent",), _PATHS[1:], _PATHS])

        def attack() -> None:
            while not alice.over():
                urls = [f"{host}{alice.rng.choice(paths)}?{alice.rng.random()}" for _ in range(_PER_REQUEST)]
                alice.note(" ".join(urls))
                alice.post("/v1/chat/completions", _request(urls))

        alice.at_once([attack] * alice.rng.choice([1, 16, 64, 200]))


# --- pictures ---


@functools.cache
def _picture(mode: str, width: int, height: int, interlaced: bool) -> str:
    options = {"interlace": True} if interlaced else {}
    return data_uri(encoded(Image.new(mode, (width, height)), "PNG", optimize=False, **options))


def _drawn(rng: random.Random) -> tuple[str, int, int, bool]:
    mode = rng.choice(["1", "L", "P", "RGB", "RGB", "RGBA", "I;16"])
    width, height = rng.choice([
        (4090, 4090), (4090, 4090), (4096, 4096), (4097, 4096), (_MOST_PIXELS, 1), (1, _MOST_PIXELS), (300, 300),
    ])  # fmt: skip
    return mode, width, height, rng.random() < 0.3


def large_pictures(alice: Alice) -> None:
    """Small files of large pictures, several in each of several requests."""

    drawn = [_drawn(alice.rng) for _ in range(_PER_REQUEST)]
    alice.note(f"pictures: {drawn}")
    urls = [_picture(*one) for one in drawn]
    alice.begin()

    def attack() -> None:
        while not alice.over():
            body = _request(urls[alice.rng.randint(0, len(urls) - 1) :])
            alice.post(alice.rng.choice(["/v1/chat/completions", "/tokenize"]), body, alice.rng.choice([1.0, None]))

    works: list[Callable[[], None]] = [partial(attack)] * alice.rng.choice([2, 6, 24])
    alice.at_once(works)


@functools.cache
def _slow_picture(chunks: int) -> str:
    return data_uri(slow_png(chunks))


def slow_pictures(alice: Alice) -> None:
    """Files of many pieces, which decoders take long for, several at the same time."""
    urls = [_slow_picture(alice.near(_MANY_CHUNKS, _MOST_CHUNKS)) for _ in range(2)]
    alice.note(f"pictures of {[len(url) for url in urls]} bytes")
    alice.begin()

    def attack() -> None:
        while not alice.over():
            alice.post("/v1/chat/completions", _request([alice.rng.choice(urls)]), alice.rng.choice([1.0, None]))

    alice.at_once([attack] * alice.rng.choice([2, 4, 8]))
