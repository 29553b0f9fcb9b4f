"""A small server in the shape of the real one: /v1 with server-sent events, and Triton's generate_stream."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

REFUSED = "no such model"


def _chunk(**fields: object) -> dict[str, object]:
    return {"object": "chat.completion.chunk", "choices": [], **fields}


def _delta(delta: dict[str, str], finish: str | None = None) -> dict[str, object]:
    return _chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


async def _chunks(body: dict[str, object]) -> AsyncIterator[dict[str, object]]:
    """The chunks of a request; its `model` says what goes wrong."""
    model, tokens = body["model"], body["max_tokens"]
    assert isinstance(tokens, int)
    prompt = str(body["messages"])
    yield _delta({"role": "assistant", "content": ""})
    for i in range(tokens):
        if model == "breaks" and i == tokens // 2:
            raise ConnectionResetError
        if model == "reports" and i == tokens // 2:
            yield {"error": {"message": "the engine failed"}}
            return
        if (model == "hangs" and i == tokens // 2) or (model == "hangs_beyond_8" and tokens == 10):
            await asyncio.sleep(60)
        if model == "slow":
            await asyncio.sleep(0.005)
        yield _delta({"content": " wörd"})
    yield _delta({}, "length")
    counted = tokens - (model == "short")
    yield _chunk(usage={"prompt_tokens": 10 + len(prompt.split()), "completion_tokens": counted})


async def chat(request: Request) -> Response:
    body = await request.json()
    if body["model"] == "missing":
        return JSONResponse({"error": {"message": REFUSED}}, status_code=404)

    async def events() -> AsyncIterator[bytes]:
        async for chunk in _chunks(body):
            text = b"data: " + json.dumps(chunk).encode() + b"\n\n"
            # Events cut anywhere, as on a real network.
            for part in (text[:7], text[7:-1], text[-1:]):
                yield part
        yield b": keep-alive\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def generate_stream(request: Request) -> Response:
    body = json.loads((await request.json())["request"])

    async def events() -> AsyncIterator[bytes]:
        async for chunk in _chunks(body):
            event = {"model_name": "openai_bls", "response": json.dumps(chunk)}
            yield b"data: " + json.dumps(event).encode() + b"\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _serve(listener: socket.socket) -> None:
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v2/models/openai_bls/generate_stream", generate_stream, methods=["POST"]),
        ]
    )
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


@contextmanager
def stub_server() -> Iterator[tuple[int, int]]:
    """Run the stub in a separate process; gives its port and process id."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(listener,), daemon=True)
        process.start()
    try:
        _await_port(port)
        assert process.pid is not None
        yield port, process.pid
    finally:
        process.kill()
        process.join()


def _await_port(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the stub server does not listen")
