"""gRPC client: one ModelStreamInfer call for each request, on a shared channel.

Messages stay bytes while the clock runs; grpc itself takes some 100 µs for each.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import grpc
from tritonclient.grpc import service_pb2

from benchmarks.clients.target import Plan, Target, bodies, triton_inputs
from benchmarks.clients.traces import RequestError, Run, Trace

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"


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
    run = Run(plan, [replace(asked, body=infer_request(plan.target, asked.body)) for asked in bodies(plan)])
    async with grpc.aio.insecure_channel("{}:{}".format(*address)) as channel:
        # A call with one request and any number of responses; bytes in, bytes out.
        call = channel.unary_stream(_METHOD)

        async def carry(request: bytes, trace: Trace) -> None:
            try:
                async for message in call(request):
                    run.last_data = time.monotonic()
                    trace.add(run.last_data, [message], plan.tail)
            except grpc.RpcError as error:
                raise RequestError(f"incomplete: status {error.code().value[0]} {error.details()}") from None

        return await run.carry_out([carry] * run.workers)
