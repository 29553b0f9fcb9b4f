"""Attacks by pieces of HTTP: chunks, trailers, header fields, parts of forms, compressed bodies, upgrades, requests
behind each other."""

from __future__ import annotations

import contextlib
import functools
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat

from openai_bls.api.http.connection.body_bounds import MAX_TRAILERS
from openai_bls.api.http.connection.bounded_connection import MAX_PIPELINED
from openai_bls.api.http.connection.refusals import MAX_HEADERS
from tests.torture.attacks.alice import Alice

_POST = "POST /v1/chat/completions HTTP/1.1"
_JSON = "Content-Type: application/json"
_CHUNKED = "Transfer-Encoding: chunked"
_BLOCK = 64 * 1024
_MOST_CONNECTIONS = 6
_FIELD_BYTES = 4096
_PART_FIELDS, _PART_HEADERS = 16, 8
_FILES = ("POST /v1/files HTTP/1.1", "Content-Type: multipart/form-data; boundary=x")


def _over_and_over(alice: Alice, attack: Callable[[], None]) -> None:
    while not alice.over():
        attack()


def _from_some(alice: Alice, attack: Callable[[], None]) -> None:
    """The same on one to six connections, again and again."""
    count = alice.rng.randint(1, _MOST_CONNECTIONS)
    alice.at_once([partial(_over_and_over, alice, attack)] * count)


def _block(piece: bytes) -> bytes:
    return piece * max(1, _BLOCK // len(piece))


def chunks(alice: Alice) -> None:
    """A body in chunks of one byte, or of few, with a key or without one."""

    def attack() -> None:
        size = alice.rng.choice([1, 1, 1, 2, 15, 16, 63, 64, 65, 1000])
        extension = alice.rng.choice(["", "", "", ";x", ";" + "x" * alice.rng.randint(1, 300)])
        key = alice.rng.random() < 0.5
        alice.note(f"chunks of {size} bytes, extension of {len(extension)}, {'a' if key else 'no'} key")
        piece = b"%x%s\r\n%s\r\n" % (size, extension.encode(), b" " * size)
        alice.raw([_POST, _JSON, _CHUNKED], repeat(_block(piece)), key)

    _from_some(alice, attack)


def trailers(alice: Alice) -> None:
    """Trailers without end, or as many as there may be."""

    def attack() -> None:
        count, size = alice.near(MAX_TRAILERS, 10**6), alice.rng.choice([0, 1, 50, 4000])
        alice.note(f"{count} trailers of {size} bytes")

        def pieces() -> Iterator[bytes]:
            yield b"2\r\n{}\r\n0\r\n"
            yield from repeat(b"a: %s\r\n" % (b"x" * size), count)
            yield b"\r\n"

        alice.raw([_POST, _JSON, _CHUNKED], pieces(), alice.rng.random() < 0.5)

    _from_some(alice, attack)


def header_fields(alice: Alice) -> None:
    """Heads of many fields, in pieces of one byte or at once, without an end or with empty lines before."""

    def attack() -> None:
        count, size = alice.near(MAX_HEADERS, 10**5), alice.rng.choice([0, 1, 200, _FIELD_BYTES])
        blank, step = alice.rng.choice([0, 0, 500, 600, 10**6]), alice.rng.choice([1, 7, _BLOCK])
        alice.note(f"{blank} empty lines, {count} fields of {size} bytes, sent {step} bytes at a time")
        head = b"\r\n" * blank + f"{_POST}\r\nHost: x\r\n".encode() + b"a: %s\r\n" % (b"x" * size) * min(count, 20_000)
        alice.send(b"", (head[at : at + step] for at in range(0, len(head), step)))

    _from_some(alice, attack)


def form_parts(alice: Alice) -> None:
    """Uploads of many fields, files, and headers of a part."""

    def attack() -> None:
        boundary = "b" * alice.rng.choice([1, 10, 70, 2000])
        fields, headers = alice.near(_PART_FIELDS, 200_000), alice.near(_PART_HEADERS, 20_000)
        size = alice.rng.choice([0, 1, _FIELD_BYTES, _FIELD_BYTES + 1])
        kind = alice.rng.choice(['name="purpose"', 'name="x"', 'name="file"; filename="x"', ""])
        alice.note(f"form: {fields} parts ({kind}), {headers} headers of {size} bytes, a boundary of {len(boundary)}")
        further = (f"a: {'x' * size}\r\n" * headers)[: 1 << 20]
        part = f"--{boundary}\r\nContent-Disposition: form-data; {kind}\r\n{further}\r\nx\r\n".encode()
        body = (part * min(fields, (8 << 20) // len(part) + 1)) + f"--{boundary}--\r\n".encode()
        path = alice.rng.choice(["/v1/files", "/v1/audio/transcriptions"])
        alice.ask("POST", path, body, {"content-type": f"multipart/form-data; boundary={boundary}"})

    _from_some(alice, attack)


def boundaries(alice: Alice) -> None:
    """Files that are full of what looks like their end, and of white space behind it."""

    def attack() -> None:
        boundary, path = "b" * alice.rng.choice([1, 70]), alice.rng.choice(["/v1/files", "/v1/audio/transcriptions"])
        mark, size = alice.rng.choice(["x", "-", "-x", "\r", " ", " " * _BLOCK]), alice.rng.choice([1 << 19, 8 << 20])
        alice.note(f"{path}: {size} bytes of boundaries of {len(boundary)}, each before {mark[:5]!r}")
        block = f"\r\n--{boundary}{mark}".encode()
        begin = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'.encode()
        body = begin + block * (size // len(block) + 1) + f"\r\n--{boundary}--\r\n".encode()
        alice.ask("POST", path, body, {"content-type": f"multipart/form-data; boundary={boundary}"})

    _from_some(alice, attack)


@functools.cache
def _packed(block: bytes, megabytes: int) -> bytes:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    piece = block * ((1 << 20) // len(block))
    return b"".join([packer.compress(piece) for _ in range(megabytes)]) + packer.flush()


def compressed(alice: Alice) -> None:
    """Bodies of few bytes that become many, whose heads have all come before."""
    count = alice.rng.choice([1, 6, 40])
    heads = threading.Barrier(count)

    def body(packed: bytes) -> Iterator[bytes]:
        with contextlib.suppress(threading.BrokenBarrierError):
            heads.wait(alice.left_s())
        yield packed

    def attack() -> None:
        block, size = alice.rng.choice([b" ", b"[", b"0,", b"\r\n--x-"]), alice.rng.choice([1, 31, 32, 33, 200])
        post, kind = alice.rng.choice([(_POST, _JSON), _FILES])
        packed = _packed(block, size)
        alice.note(f"{post}: {size} MB of {block!r}, compressed, of {count} at a time")
        alice.raw([post, kind, "Content-Encoding: gzip", f"Content-Length: {len(packed)}"], body(packed))

    alice.at_once([partial(_over_and_over, alice, attack)] * count)


_FRAMES = {
    "WebSocket": b"\x81\x81\x00\x00\x00\x00x",
    "settings of HTTP/2": b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "empty data of HTTP/2": b"\x00\x00\x00\x00\x00\x00\x00\x00\x01",
    "lines": b"\r\n",
}


def upgrades(alice: Alice) -> None:
    """Upgrades to WebSocket and to HTTP/2, which there are not, and frames behind them."""
    websocket = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    h2c = ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]

    def attack() -> None:
        name, path = alice.rng.choice(sorted(_FRAMES)), alice.rng.choice(["/", "/v1/responses", "/v1/models"])
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        frames = repeat(_block(_FRAMES[name]))
        alice.note(f"an upgrade of {path}, then {name}")
        if alice.rng.random() < 0.3:
            alice.send(preface, frames)
        else:
            fields = alice.rng.choice([[*websocket, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="], h2c])
            alice.raw([f"GET {path} HTTP/1.1", *fields], frames, alice.rng.random() < 0.5)

    _from_some(alice, attack)


def pipelined(alice: Alice) -> None:
    """Requests behind each other, far more than may wait, whose answers are read late."""

    def attack() -> None:
        path = alice.rng.choice(["/health", "/v1/models", "/openapi.json", "/metrics", "/v1/conversations/x/items"])
        count = alice.near(MAX_PIPELINED, 5000)
        alice.note(f"{count} times {path}")
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        alice.send(b"", (_block(request)[: len(request) * count] for _ in range(max(1, count // 100))))

    _from_some(alice, attack)
