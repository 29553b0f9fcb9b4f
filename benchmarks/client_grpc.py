"""gRPC client: one ModelStreamInfer call for each request, on a shared channel.

Messages stay bytes while the clock runs; grpc itself takes some 100 µs for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import grpc
from tritonclient.grpc import service_pb2

from benchmarks.target import Plan, Target, bodies, triton_inputs
from benchmarks.traces import Supply, Trace

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_WATCH_INTERVAL_S = 1.0


def infer_request(target: Target, body: bytes) -> bytes:
    """A serialized ModelInferRequest that carries `body`: strings as BYTES [1], integers as INT32 [n]."""
    message = service_pb2.ModelInferRequest(model_name=target.triton_model)
    for name, value in triton_inputs(target, body).items():
        tensor = message.inputs.add()
        tensor.name = name
        if isinstance(value, str):
            tensor.datatype = "BYTES"
            tensor.shape.append(1)
            tensor.contents.bytes_contents.append(value.encode())
        else:
            numbers = value if isinstance(value, list) else [value]
            tensor.datatype = "INT32"
            tensor.shape.append(len(numbers))
            tensor.contents.int_contents.extend(numbers)
    serialized: bytes = message.SerializeToString()
    return serialized


async def run_grpc(plan: Plan) -> list[Trace]:
    """Carry out `plan` over gRPC.

    Raises:
        OSError: the server cannot be reached.
    """
    address = plan.target.host, plan.target.port
    _, writer = await asyncio.open_connection(*address)
    writer.close()
    supply = Supply(plan, [infer_request(plan.target, body) for body in bodies(plan)])
    async with grpc.aio.insecure_channel("{}:{}".format(*address)) as channel:
        # A call with one request and any number of responses; bytes in, bytes out.
        call = channel.unary_stream(_METHOD)
        supply.start()
        workers = [asyncio.ensure_future(_work(supply, call)) for _ in range(supply.workers)]
        while not supply.finished.done():
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(supply.finished), _WATCH_INTERVAL_S)
            if supply.stalled():
                supply.stop()
                for worker in workers:
                    worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return supply.traces


async def _work(supply: Supply, call: grpc.aio.UnaryStreamMultiCallable) -> None:
    """Requests one after another."""
    plan = supply.plan
    while (request := supply.take()) is not None:
        trace = Trace(time.monotonic())
        try:
            async for message in call(request, timeout=plan.timeout_s):
                supply.last_data = time.monotonic()
                trace.add(supply.last_data, [message], plan.tail)
        except grpc.RpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            status = f"status {error.code().value[0]} {error.details()}"
            trace.failure = f"incomplete: {'timed out' if late else status}"
        except asyncio.CancelledError:
            trace.failure = supply.stalled() or "incomplete: cancelled"
        trace.ended = time.monotonic()
        supply.finish(trace)
        if plan.pause_s:
            await asyncio.sleep(supply.pause_s())
