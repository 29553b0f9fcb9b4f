"""Streams of models through this server's own gRPC front end, connected to when the first one is asked for."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from openai_bls.transport.model_calls import Array, Arrays, NoStreamsError
from openai_bls.triton_models.server.process import NoGrpcError, grpc_address

if TYPE_CHECKING:
    from openai_bls.transport.grpc.model_stream import GrpcModelStreams

_MODULE = "openai_bls.transport.grpc.model_stream"


class GrpcStreams:
    """`ModelCalls.stream` of the server around this process; belongs to the event loop's thread.

    Args:
        owner: process id of the tritonserver.
        address: host and port of its gRPC front end; empty reads its command line.
    """

    def __init__(self, owner: int, address: str = "") -> None:
        self._owner = owner
        self._address = address
        self._streams: GrpcModelStreams | None = None
        self._closed = False

    async def stream(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float
    ) -> AsyncGenerator[Arrays, None]:
        """The responses of a decoupled model; see `ModelCalls.stream`, without shares of shared memory.

        Raises:
            NoStreamsError: the server has no gRPC front end that can be used, or is shutting down.
        """
        streams = await self._connected()
        async with aclosing(streams.stream(model, inputs, outputs, timeout_s=timeout_s)) as responses:
            async for response in responses:
                yield response

    async def close(self) -> None:
        """Hang up; streams that are open end with an error."""
        self._closed = True
        if self._streams is not None:
            await self._streams.close()

    async def _connected(self) -> GrpcModelStreams:
        if self._streams is None:
            try:
                address = self._address or grpc_address(self._owner)
                # Not at the top: gRPC costs memory, and time that the event loop has not got.
                module = await asyncio.to_thread(importlib.import_module, _MODULE)
            except NoGrpcError as error:
                raise NoStreamsError(f"it is called over gRPC, but {error}") from None
            except ImportError as error:
                raise NoStreamsError(f"it is called over gRPC, for which a package is missing ({error})") from None
            # Another request may have connected meanwhile.
            if self._streams is None and not self._closed:
                self._streams = module.GrpcModelStreams(address)
        if self._closed or self._streams is None:
            raise NoStreamsError("the server is shutting down")
        return self._streams
