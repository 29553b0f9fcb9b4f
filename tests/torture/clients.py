"""Clients that behave badly: they read slowly, vanish, never finish asking, or ask a lot at once."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import struct
import time
from collections.abc import Callable

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.attacks.keys import OWN, authorization
from tests.torture.doors import GRPC_OPTIONS, HOST, PATIENCE_SECONDS
from tests.torture.streams import BrokenOffError, SaidError, WrongError
from tests.triton.conftest import ANSWERED

_CHAT = {"messages": ANSWERED.messages, "max_tokens": 200, "temperature": 0, "stream": True}
_PIPELINED = 12
"""Below the 16 that a connection may have waiting."""
_HALF_OPEN = 40
_TOO_MUCH_MB = 200
_HALF_OPEN_SECONDS = 30.0
"""Above `head_timeout_s` (10)."""


def _request(path: str, body: object, *, close: bool = True) -> bytes:
    text = json.dumps(body).encode()
    connection = "close" if close else "keep-alive"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: {authorization(OWN)}\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


def _connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS)


def _check_stream(received: bytes, where: str) -> None:
    """Compare a stream of `_CHAT`, chunked, with the known text."""
    if not received.startswith(b"HTTP/1.1 200"):
        raise SaidError(f"{where}: {received[:300]!r}")
    if not received.endswith(b"\r\n0\r\n\r\n"):
        raise BrokenOffError(where)
    text = ""
    for found in re.finditer(rb"data: (\{.*?\})\n\n", received):
        chunk = json.loads(found[1])
        if "error" in chunk:
            raise SaidError(f"{where}: {chunk['error']}")
        text += chunk["choices"][0]["delta"].get("content") or ""
    if text != ANSWERED.answer or b"data: [DONE]" not in received:
        raise WrongError(f"{where}: {text!r}")


def slow_reader(ports: Ports, rng: random.Random) -> None:
    """Reads a stream in small pieces through a small window, and gets all of it."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect((HOST, ports.openai))
        connection.sendall(_request("/v1/chat/completions", _CHAT))
        received = b""
        while piece := connection.recv(rng.choice([7, 64, 500])):
            received += piece
            time.sleep(0.002)
    _check_stream(received, "a slow reader")


def vanishing(ports: Ports, rng: random.Random) -> None:
    """Goes away by a reset: before its body ends, before an answer, or in the middle of one."""
    fields = {"messages": json.dumps(ANSWERED.messages), "max_tokens": 200, "stream": True}
    words = {"text_input": "Hello", "max_tokens": 100, "stream": True}
    port, path, body = rng.choice([
        (ports.openai, "/v1/chat/completions", _CHAT),
        (ports.openai, "/v1/chat/completions", {**_CHAT, "stream": False, "n": 4}),
        (ports.openai, "/v1/responses", {"input": "Hello!", "stream": True}),
        (ports.http, "/v2/models/openai_bls/generate_stream", fields),
        (ports.http, "/v2/models/tensorrt_llm_bls/generate_stream", words),
    ])  # fmt: skip
    whole = _request(path, body)
    with _connect(port) as connection:
        connection.sendall(whole[: rng.randint(1, len(whole) - 1)] if rng.random() < 0.3 else whole)
        if rng.random() < 0.5:
            connection.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                connection.recv(rng.randint(1, 1000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def cancelling(ports: Ports, rng: random.Random) -> None:
    """Cancels a stream of gRPC after some responses."""
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls")
    for name, kind, raw in (
        ("text_input", "BYTES", (5).to_bytes(4, "little") + b"Hello"),
        ("max_tokens", "INT32", (100).to_bytes(4, "little")),
        ("stream", "BOOL", b"\1"),
    ):
        request.inputs.add(name=name, datatype=kind, shape=[1, 1])
        request.raw_input_contents.append(raw)
    with grpc.insecure_channel(f"{HOST}:{ports.grpc}", GRPC_OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_SECONDS)
        try:
            for _ in range(rng.randint(1, 5)):
                next(call)
        except grpc.RpcError as error:
            raise BrokenOffError(str(error.code())) from None
        except StopIteration:
            return
        finally:
            call.cancel()


def pipelining(ports: Ports, rng: random.Random) -> None:
    """Sends several requests at once, before it reads the answers, which come in their order."""
    prompts = [f"pipelined {at} {rng.random()}" for at in range(_PIPELINED)]
    last = len(prompts) - 1
    sent = b"".join(_request("/v1/tokenize", {"prompt": prompt}, close=at == last) for at, prompt in enumerate(prompts))
    with _connect(ports.openai) as connection:
        connection.sendall(sent)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", received)
    if len(statuses) < len(prompts):
        raise BrokenOffError(f"{len(statuses)} of {len(prompts)} answers")
    if set(statuses) != {b"200"}:
        raise SaidError(f"pipelined requests: {sorted(set(statuses))}")


def half_open(ports: Ports, rng: random.Random) -> None:
    """Begins requests and never ends them: the server ends the connections."""
    begin = _request("/v1/chat/completions", _CHAT)
    head = begin.index(b"\r\n\r\n")
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(_HALF_OPEN):
            connection = stack.enter_context(_connect(ports.openai))
            connection.sendall(begin[: rng.randint(1, head)])
            connections.append(connection)
        deadline = time.monotonic() + _HALF_OPEN_SECONDS
        for connection in connections:
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                received = connection.recv(1000)
            except TimeoutError:
                raise WrongError("a request without an end was never given up") from None
            if received and not received.startswith((b"HTTP/1.1 408", b"HTTP/1.1 503")):
                raise WrongError(f"half a request: {received[:200]!r}")


def endless_base64(ports: Ports, rng: random.Random) -> None:
    """Sends an image of 200 MB in base64, whose length it says or not: it is told so, or hung up on."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Authorization: {authorization(OWN)}\r\n"
    begin = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    piece, told = b"A" * (1 << 20), rng.random() < 0.5
    head += f"Content-Length: {len(begin) + _TOO_MUCH_MB * len(piece)}\r\n\r\n" if told else ""
    head += "" if told else "Transfer-Encoding: chunked\r\n\r\n"
    received = b""
    with _connect(ports.openai) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head.encode())
            for one in (begin, *[piece] * _TOO_MUCH_MB):
                connection.sendall(one if told else b"%x\r\n%s\r\n" % (len(one), one))
        with contextlib.suppress(ConnectionError):
            received = connection.recv(1000)
    if received and not received.startswith((b"HTTP/1.1 413", b"HTTP/1.1 503")):
        raise WrongError(f"200 MB of base64: {received[:200]!r}")


ANTICS: dict[str, Callable[[Ports, random.Random], None]] = {
    "slow reader": slow_reader,
    "vanishing client": vanishing,
    "cancelled gRPC stream": cancelling,
    "pipelining": pipelining,
    "half-open connections": half_open,
    "200 MB of base64": endless_base64,
}
