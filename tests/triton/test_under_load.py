"""Exact text on every path while the server is busy: many clients, some slow, some gone, cuts at random places."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient

from openai_bls.launcher.testing import RunningServer, run_server

pytestmark = pytest.mark.triton

# The null engine gives every prompt back, so each request's text is known, whatever the others do.
ECHO = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_ENGINE_NULL_ECHO": "true"}
ALPHABET = [
    "naïve café", "能量", "😀👩🏽‍💻", "the quick", "\n\n", '"quoted" \\', "🇫🇷", "Ωμέγα", " and ", "<b>", "\u0000",
]  # fmt: skip
WORKERS = 24
REQUESTS = 10  # of each worker


def joined(chunks: list[dict[str, Any]]) -> str:
    """The text of a stream, which must be complete: one finish_reason, one usage, in this order and last."""
    assert [len(chunk["choices"]) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    return "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1])


USAGE = {"include_usage": True}


def body_for(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1024, "stream": True, **fields}


class Worker:
    """One client after another; each asks on a path of its own, and returns None if it goes away in the middle."""

    def __init__(self, server: RunningServer, http: httpx.AsyncClient, seed: str) -> None:
        self.server = server
        self.http = http
        self.rng = random.Random(seed)
        self.triton = f"{server.http_url}/v2/models/openai_bls"

    async def events(self, url: str, body: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The events of a stream. Some clients read slowly."""
        leaves_after = self.rng.randint(1, 400) if self.rng.random() < 0.25 else None
        slow = self.rng.random() < 0.25
        received = b""
        async with self.http.stream("POST", url, json=body) as response:
            assert response.status_code == 200
            async for piece in response.aiter_raw(self.rng.choice([7, 64, 1000, None])):
                received += piece
                if leaves_after is not None and len(received) > leaves_after:
                    return None
                if slow:
                    await asyncio.sleep(0.002)
        events = [event.removeprefix(b"data: ") for event in received.split(b"\n\n") if event.startswith(b"data: ")]
        return [json.loads(event) for event in events if event != b"[DONE]"]

    async def on_v1(self, prompt: str) -> str | None:
        chunks = await self.events(f"{self.server.openai_url}/completions", body_for(prompt, stream_options=USAGE))
        return None if chunks is None else joined(chunks)

    async def on_v1_whole(self, prompt: str) -> str | None:
        response = await self.http.post(f"{self.server.openai_url}/completions", json=body_for(prompt, stream=False))
        return str(response.json()["choices"][0]["text"])

    async def on_generate_stream(self, prompt: str) -> str | None:
        body = body_for(prompt, stream_options=json.dumps(USAGE))
        events = await self.events(f"{self.triton}/generate_stream", body)
        return None if events is None else joined([json.loads(event["response"]) for event in events])

    async def on_tensorrt_llm_bls(self, prompt: str) -> str | None:
        body = {"text_input": prompt, "max_tokens": 1024, "stream": True}
        events = await self.events(f"{self.server.http_url}/v2/models/tensorrt_llm_bls/generate_stream", body)
        return None if events is None else "".join(event["text_output"] for event in events)

    async def on_generate(self, prompt: str) -> str | None:
        response = await self.http.post(f"{self.triton}/generate", json=body_for(prompt, stream=False))
        return str(json.loads(response.json()["response"])["choices"][0]["text"])

    async def on_grpc(self, prompt: str) -> str | None:
        request = grpcclient.InferInput("request", [1], "BYTES")
        text = json.dumps(body_for(prompt, stream_options=USAGE))
        request.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))

        async def requests() -> Any:
            yield {"model_name": "openai_bls", "inputs": [request]}

        leaves_after = self.rng.randint(0, 20) if self.rng.random() < 0.25 else None
        chunks = []
        async with grpcclient.InferenceServerClient(self.server.grpc_url) as triton:
            stream = triton.stream_infer(requests())
            async for result, error in stream:
                assert error is None, error.message()
                if result.get_response().outputs:
                    chunks.append(json.loads(result.as_numpy("response")[0]))
                if leaves_after is not None and len(chunks) > leaves_after:
                    stream.cancel()
                    return None
        return joined(chunks)

    async def run(self) -> int:
        """How many of the clients have gone away."""
        ways: list[Callable[[str], Awaitable[str | None]]] = [
            self.on_v1, self.on_v1, self.on_generate_stream, self.on_grpc, self.on_v1_whole, self.on_generate,
            self.on_tensorrt_llm_bls,
        ]  # fmt: skip
        gone = 0
        for _ in range(REQUESTS):
            prompt = "".join(self.rng.choice(ALPHABET) for _ in range(self.rng.randint(5, 60)))
            answer = await self.rng.choice(ways)(prompt)
            assert answer in (None, prompt)
            gone += answer is None
        return gone


@contextmanager
def silent_clients(server: RunningServer) -> Iterator[None]:
    """Connections that ask and never read, or never finish asking; they must cost nobody anything."""
    body = json.dumps(body_for("x" * 500)).encode()
    payload = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with ExitStack() as stack:
        for part in (payload, payload[:60]) * 4:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.ports.openai)))
            connection.sendall(part)
        yield


def test_every_text_is_right(repository: Path) -> None:
    async def main(server: RunningServer) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as http:
            workers = [Worker(server, http, f"1/{number}") for number in range(WORKERS)]
            gone = sum(await asyncio.gather(*(worker.run() for worker in workers)))
            # Those that went away must not be all there was.
            assert 0 < gone < WORKERS * REQUESTS / 2
            # What they left behind is given up: every slot of the engine is free again.
            prompts = [f"last {at}" for at in range(256)]
            assert await asyncio.gather(*map(workers[0].on_v1_whole, prompts)) == prompts

    env = {**ECHO, "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "1", "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": "256"}
    with run_server(repository, env=env) as server, silent_clients(server):
        asyncio.run(main(server))


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
        prompt = f"stream {number}"
        body = json.dumps(body_for(prompt, stream_options=USAGE)).encode()
        async with room:
            # Listening sockets have short queues.
            reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.openai)
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
