"""Streams of other Triton models over loopback gRPC: one stream per request, all over one connection.

Decoupled BLS calls crash stubs (docs/architecture/triton.md), hence this way for models that send several responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from openai_bls.transport.grpc import wire
from openai_bls.transport.model_calls import (
    Array,
    Arrays,
    ModelCallError,
    ModelTimeoutError,
    ModelUnavailableError,
)

logger = logging.getLogger(__name__)

# Triton's words for a model that is not loaded, or is being unloaded.
_NOT_LOADED = re.compile(r"unknown model|is not ready|no available versions|not found|unloading", re.IGNORECASE)
# Seconds that a stream has to end by itself before it is broken off: tritonserver 2.51.0 may lose a request whose
# stream breaks off just as it ends, and then never unloads the model.
_GRACE_S = 0.25
_TRACEBACK = "\n\nAt:\n"


class GrpcModelStreams:
    """The `stream` of `transport.model_calls.ModelCalls`; belongs to the event loop's thread.

    Args:
        address: host and port of this server's gRPC front end.
    """

    def __init__(self, address: str) -> None:
        self._channel = wire.open_channel(address)
        self._closed = False
        self._ending: set[asyncio.Task[None]] = set()
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def stream(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float
    ) -> AsyncGenerator[Arrays, None]:
        """The responses of a model, in order; an end without tensors is none. Closing the iterator cancels the request.

        Args:
            model: name of a model that is decoupled, or answers once.
            inputs: tensors by name.
            outputs: names of the tensors wanted.
            timeout_s: seconds until the last response.

        Raises:
            ModelCallError: it failed, is not there, or the deadline has passed.
        """
        final = False
        reading: asyncio.Future[Any] | None = None
        call = self._stub.ModelStreamInfer(timeout=timeout_s)
        try:
            await call.write(wire.infer_request(model, inputs, outputs))
            # Shielded: a cancelled read would break the stream off at once.
            while (answer := await asyncio.shield(reading := asyncio.ensure_future(call.read()))) is not grpc.aio.EOF:
                if answer.error_message:
                    raise _model_error(model, answer.error_message)
                arrays = wire.read_arrays(answer)
                if arrays:
                    yield arrays
                if wire.is_final(answer):
                    final = True
                    await wire.done_writing(call)
        except grpc.aio.AioRpcError as error:
            raise _call_error(model, error, timeout_s) from None
        except asyncio.CancelledError:
            # grpc raises it for the calls of a channel that is closed, too.
            if not self._closed:
                raise
            raise ModelUnavailableError("the server is shutting down") from None
        finally:
            if not call.done():
                task = asyncio.get_running_loop().create_task(_let_end(call, reading))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        if not final:
            raise ModelCallError(f"the stream of the model '{model}' broke off")

    async def close(self) -> None:
        """Hang up; streams that are open end with an error."""
        self._closed = True
        await self._channel.close()
        await asyncio.gather(*self._ending)


async def _let_end(call: Any, reading: asyncio.Future[Any] | None) -> None:
    """Read on for a moment, then break the stream off.

    A client often goes, and a model often fails, just before the model's FINAL.
    """

    async def read_on() -> None:
        await wire.done_writing(call)
        answer = None if reading is None else await reading
        while answer is not grpc.aio.EOF:
            answer = await call.read()

    with contextlib.suppress(asyncio.TimeoutError, grpc.aio.AioRpcError, asyncio.CancelledError):
        await asyncio.wait_for(read_on(), _GRACE_S)
    call.cancel()


def _model_error(model: str, message: str) -> ModelCallError:
    if _NOT_LOADED.search(message) and repr(model) in message:
        return ModelUnavailableError(f"the model '{model}' is not loaded")
    # Below it stands the traceback of a Python model, which its own log has.
    return ModelCallError(f"the model '{model}': {message.partition(_TRACEBACK)[0]}")


def _call_error(model: str, error: grpc.aio.AioRpcError, timeout_s: float) -> ModelCallError:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ModelTimeoutError(f"the model '{model}' has not answered within {timeout_s:g} s")
    logger.warning("a stream of %s broke off: %s", model, error.details())
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return ModelUnavailableError("the connection to Triton's gRPC front end was lost")
    return ModelCallError(f"the stream of the model '{model}' broke off")
