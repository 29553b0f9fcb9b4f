"""Exact text on every path while the server is busy: many clients, some slow, some gone, cuts at random places."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient

from openai_bls.launcher.testing import RunningServer, run_server

pytestmark = pytest.mark.triton

# The null engine gives every prompt back, so each request's text is known, whatever the others do.
ECHO = {
    "OPENAI_BLS_ENGINE": "null",
    "OPENAI_BLS_ENGINE_NULL_ECHO": "true",
    "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "1",
    "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": "256",
}
ALPHABET = [
    "naïve café",
    "能量",
    "😀👩🏽‍💻",
    "the quick",
    "\n\n",
    '"quoted" \\',
    "🇫🇷",
    "Ωμέγα",
    " and ",
    "<b>",
    "\u0000",
]
WORKERS = 24
REQUESTS = 10  # of each worker


def text_of(rng: random.Random) -> str:
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(5, 60)))


def joined(chunks: list[dict[str, Any]]) -> str:
    """The text of a stream, which must be complete: one finish_reason, one usage, in this order and last."""
    assert [len(chunk["choices"]) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    return "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1])


def body_for(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1024, "stream": True, **fields}


Path_ = Callable[[RunningServer, httpx.AsyncClient, str, random.Random], Awaitable[str | None]]
USAGE = {"include_usage": True}


async def read(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], rng: random.Random
) -> list[dict[str, Any]] | None:
    """The events of a stream; None if this client has gone away in the middle. Some read slowly."""
    leaves_after = rng.randint(1, 400) if rng.random() < 0.25 else None
    slow = rng.random() < 0.25
    received = b""
    async with client.stream("POST", url, json=body) as response:
        assert response.status_code == 200
        async for piece in response.aiter_raw(rng.choice([7, 64, 1000, None])):
            received += piece
            if leaves_after is not None and len(received) > leaves_after:
                return None
            if slow:
                await asyncio.sleep(0.002)
    events = [event.removeprefix(b"data: ") for event in received.split(b"\n\n") if event.startswith(b"data: ")]
    if events[-1] == b"[DONE]":
        events.pop()
    return [json.loads(event) for event in events]


async def on_v1(server: RunningServer, client: httpx.AsyncClient, prompt: str, rng: random.Random) -> str | None:
    chunks = await read(client, f"{server.openai_url}/completions", body_for(prompt, stream_options=USAGE), rng)
    return None if chunks is None else joined(chunks)


async def on_v1_whole(server: RunningServer, client: httpx.AsyncClient, prompt: str, rng: random.Random) -> str | None:
    response = await client.post(f"{server.openai_url}/completions", json=body_for(prompt, stream=False))
    return str(response.json()["choices"][0]["text"])


async def on_generate_stream(
    server: RunningServer, client: httpx.AsyncClient, prompt: str, rng: random.Random
) -> str | None:
    url = f"{server.http_url}/v2/models/openai_bls/generate_stream"
    events = await read(client, url, body_for(prompt, stream_options=json.dumps(USAGE)), rng)
    return None if events is None else joined([json.loads(event["response"]) for event in events])


async def on_generate(server: RunningServer, client: httpx.AsyncClient, prompt: str, rng: random.Random) -> str | None:
    url = f"{server.http_url}/v2/models/openai_bls/generate"
    response = await client.post(url, json=body_for(prompt, stream=False))
    return str(json.loads(response.json()["response"])["choices"][0]["text"])


async def on_grpc(server: RunningServer, client: httpx.AsyncClient, prompt: str, rng: random.Random) -> str | None:
    request = grpcclient.InferInput("request", [1], "BYTES")
    text = json.dumps(body_for(prompt, stream_options=USAGE))
    request.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))

    async def requests() -> Any:
        yield {"model_name": "openai_bls", "inputs": [request]}

    leaves_after = rng.randint(0, 20) if rng.random() < 0.25 else None
    chunks = []
    async with grpcclient.InferenceServerClient(server.grpc_url) as triton:
        stream = triton.stream_infer(requests())
        async for result, error in stream:
            assert error is None, error.message()
            if result.get_response().outputs:
                chunks.append(json.loads(result.as_numpy("response")[0]))
            if leaves_after is not None and len(chunks) > leaves_after:
                stream.cancel()
                return None
    return joined(chunks)


PATHS: list[Path_] = [on_v1, on_v1, on_generate_stream, on_grpc, on_v1_whole, on_generate]


async def on_no_path(server: RunningServer) -> None:
    """Connections that ask and never read, or never finish asking; they must cost nobody anything."""
    host, port = server.openai_url.removeprefix("http://").removesuffix("/v1").split(":")
    body = json.dumps(body_for("x" * 500)).encode()
    for payload in (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body),
    ) * 4:
        for part in (payload, payload[:60]):
            silent = socket.create_connection((host, int(port)))
            silent.sendall(part)
            _SILENT.append(silent)


_SILENT: list[socket.socket] = []


@pytest.mark.parametrize("seed", [1, 2])
def test_every_text_is_right(repository: Path, seed: int) -> None:
    async def worker(number: int, server: RunningServer, client: httpx.AsyncClient) -> int:
        rng = random.Random(f"{seed}/{number}")
        gone = 0
        for _ in range(REQUESTS):
            prompt = text_of(rng)
            answer = await rng.choice(PATHS)(server, client, prompt, rng)
            if answer is None:
                gone += 1
            else:
                assert answer == prompt
        return gone

    async def main(server: RunningServer) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            await on_no_path(server)
            gone = await asyncio.gather(*(worker(number, server, client) for number in range(WORKERS)))
            # Those that went away must not be all there was.
            assert 0 < sum(gone) < WORKERS * REQUESTS / 2
            # What they left behind is given up: every slot of the engine is free again.
            answers = await asyncio.gather(
                *(on_v1_whole(server, client, f"last {at}", random.Random()) for at in range(256))
            )
            assert answers == [f"last {at}" for at in range(256)]

    with run_server(repository, env=ECHO) as server:
        try:
            asyncio.run(main(server))
        finally:
            while _SILENT:
                _SILENT.pop().close()


def test_two_thousand_streams_at_once(repository: Path) -> None:
    """Held open together by the engine's pace, each with a text of its own."""
    count = 2000
    env = {
        **ECHO,
        "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "50",
        "OPENAI_BLS_ENGINE_NULL_FIRST_TOKEN_DELAY_MS": "3000",
        "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": str(count),
    }

    async def one(server: RunningServer, number: int, room: asyncio.Semaphore) -> None:
        host, port = server.openai_url.removeprefix("http://").removesuffix("/v1").split(":")
        prompt = f"stream {number}"
        body = json.dumps(body_for(prompt, stream_options=USAGE)).encode()
        async with room:
            # Listening sockets have short queues.
            reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        received = await reader.read()
        writer.close()
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), received[:500]
        events = [line[6:] for line in rest.split(b"\r\n") if line.startswith(b"data: ")]
        chunks = [json.loads(event) for line in events for event in line.split(b"\n\ndata: ") if b"[DONE]" not in event]
        assert joined(chunks) == prompt
        assert rest.count(b"[DONE]") == 1

    async def main(server: RunningServer) -> None:
        room = asyncio.Semaphore(200)
        await asyncio.gather(*(one(server, number, room) for number in range(count)))

    with run_server(repository, env=env) as server:
        asyncio.run(main(server))
