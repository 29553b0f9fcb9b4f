"""The gRPC client: one ModelStreamInfer call for each request, on a shared channel.

Messages stay bytes while the clock runs. gRPC in Python costs some 50 µs a message, far more than the HTTP client, so a
single client process is soon what limits a measurement: look at its load.
"""

from __future__ import annotations

import asyncio
import time
from itertools import cycle

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from benchmarks.events import StreamFailure
from benchmarks.stats import Trace
from benchmarks.target import Plan, Target, bodies

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_LENGTH_BYTES = 4


def infer_request(target: Target, body: bytes) -> bytes:
    """A serialized ModelInferRequest that carries an OpenAI `body` in the input `request`, BYTES [1]."""
    message = service_pb2.ModelInferRequest(model_name=target.triton_model)
    tensor = message.inputs.add()
    tensor.name = "request"
    tensor.datatype = "BYTES"
    tensor.shape.append(1)
    tensor.contents.bytes_contents.append(body)
    serialized: bytes = message.SerializeToString()
    return serialized


def grpc_payload(message: bytes) -> bytes:
    """The OpenAI chunk in a serialized ModelStreamInferResponse.

    Raises:
        StreamFailure: an error of Triton's.
    """
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    if response.error_message:
        raise StreamFailure(response.error_message)
    chunk: bytes = response.infer_response.raw_output_contents[0][_LENGTH_BYTES:]
    return chunk


async def run_grpc(plan: Plan) -> list[Trace]:
    """Carry out `plan` over gRPC.

    Raises:
        OSError: the server cannot be reached.
    """
    requests = cycle([infer_request(plan.target, body) for body in bodies(plan)])
    traces: list[Trace] = []
    left = plan.requests
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

    async with grpc.aio.insecure_channel(f"{plan.target.host}:{plan.target.port}", options=options) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), timeout=10.0)
        except (asyncio.TimeoutError, TimeoutError):
            raise ConnectionRefusedError(f"no gRPC at {plan.target.host}:{plan.target.port}") from None
        # Without (de)serializers, bytes go in and come out.
        stream = channel.stream_stream(_METHOD)

        async def worker() -> None:
            nonlocal left
            while left:
                left -= 1
                trace = Trace(time.monotonic())
                await _one(stream(timeout=plan.timeout_s), next(requests), trace, plan.tail)
                trace.ended = time.monotonic()
                traces.append(trace)

        await asyncio.gather(*(worker() for _ in range(min(plan.concurrency, plan.requests))))
    return traces


async def _one(call: grpc.aio.StreamStreamCall, request: bytes, trace: Trace, keep: int) -> None:
    try:
        await call.write(request)
        # The server ends its half once every response has gone out.
        await call.done_writing()
        while (message := await call.read()) is not grpc.aio.EOF:
            trace.add(time.monotonic(), [message], keep)
        if (code := await call.code()) is not grpc.StatusCode.OK:
            trace.failure = f"incomplete: {code.name} {await call.details()}"
    except grpc.aio.AioRpcError as error:
        trace.failure = f"incomplete: {error.code().name} {error.details()}"
