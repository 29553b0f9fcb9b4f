"""Exact text of two thousand streams at once; tests/torture has slow clients and those that leave."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.launcher.testing import RunningServer, run_server

pytestmark = pytest.mark.triton

# The null engine gives every prompt back, so each request's text is known, whatever the others do.
ECHO = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_ENGINE_NULL_ECHO": "true"}


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
