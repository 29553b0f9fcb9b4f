from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from openai_bls.transport.model_calls import Arrays, ModelUnavailableError, NoStreamsError
from openai_bls.triton_models.server.grpc_streams import GrpcStreams
from tests.unit.transport.grpc.test_model_stream import response, serving, text


async def answers(*_: Any) -> AsyncIterator[Any]:
    yield response(response=text(b"a"), final=True)


async def first(streams: GrpcStreams) -> list[Arrays]:
    return [arrays async for arrays in streams.stream("rag", {"request": text(b"")}, ["response"], timeout_s=5)]


def without_server() -> GrpcStreams:
    """This process is no tritonserver."""
    return GrpcStreams(os.getpid())


async def test_a_server_without_grpc_is_named() -> None:
    streams = without_server()
    with pytest.raises(NoStreamsError, match=r"gRPC, .*tritonserver"):
        await first(streams)
    await streams.close()


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai_bls.transport.grpc.model_stream", None)
    with pytest.raises(NoStreamsError, match=r"package .*model_stream"):
        await first(GrpcStreams(os.getpid(), "127.0.0.1:1"))


async def test_one_connection_for_requests_that_come_together() -> None:
    async with serving(answers) as (triton, _):
        streams = GrpcStreams(os.getpid(), triton.address)
        found = await asyncio.gather(*(first(streams) for _ in range(8)))
        assert [[arrays["response"].item() for arrays in each] for each in found] == [[b"a"]] * 8
        await streams.close()
        with pytest.raises(ModelUnavailableError, match="shutting down"):
            await first(streams)
