"""The gRPC client: one ModelStreamInfer call for each request, on a shared connection.

Messages stay bytes while the clock runs.
"""

from __future__ import annotations

import asyncio
import time

from tritonclient.grpc import service_pb2

from benchmarks.events import StreamFailure
from benchmarks.http2 import GrpcConnection
from benchmarks.stats import Trace
from benchmarks.supply import Supply
from benchmarks.target import Plan, Target, bodies, triton_inputs

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_LENGTH_BYTES = 4
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


def grpc_payload(message: bytes) -> bytes:
    """The first element of the first output in a serialized ModelStreamInferResponse, such as an OpenAI chunk.

    Raises:
        StreamFailure: an error of Triton's, or no output.
    """
    response = service_pb2.ModelStreamInferResponse.FromString(message)
    if response.error_message:
        raise StreamFailure(response.error_message)
    outputs = response.infer_response.raw_output_contents
    if not outputs:
        raise StreamFailure("a response without an output")
    if response.infer_response.outputs and response.infer_response.outputs[0].datatype == "INT32":
        return str(int.from_bytes(outputs[0][:4], "little")).encode()
    chunk: bytes = outputs[0][_LENGTH_BYTES:]
    return chunk


class _Load(GrpcConnection):
    """One run of a plan on one connection."""

    def __init__(self, supply: Supply) -> None:
        target = supply.plan.target
        super().__init__(f"{target.host}:{target.port}", _METHOD)
        self._supply = supply
        self._keep = supply.plan.tail
        self._open: dict[int, Trace] = {}
        self._loop = asyncio.get_running_loop()

    def next_call(self) -> None:
        """Make the next call, if there is one."""
        if self._transport is None:
            self._supply.fail(ConnectionResetError("the gRPC connection was closed"))
            return
        request = self._supply.take()
        if request is not None:
            trace = Trace(time.monotonic())
            self._open[self.call(request)] = trace

    def messages(self, stream: int, messages: list[bytes]) -> None:
        now = self._supply.last_data = time.monotonic()
        self._open[stream].add(now, messages, self._keep)

    def ended(self, stream: int, problem: str) -> None:
        trace = self._open.pop(stream)
        trace.ended = time.monotonic()
        if problem:
            trace.failure = f"incomplete: {problem}"
        self._supply.finish(trace)
        if self._supply.plan.pause_s:
            self._loop.call_later(self._supply.pause_s(), self.next_call)
        elif problem:
            # Not from within the loop over the calls of a connection that has closed.
            self._loop.call_soon(self.next_call)
        else:
            self.next_call()

    def give_up(self) -> None:
        """Stop and close, if nothing comes any more or a request takes too long; a connection has all requests."""
        problem = self._supply.stalled()
        too_old = time.monotonic() - self._supply.plan.timeout_s
        if not problem and any(trace.started < too_old for trace in self._open.values()):
            problem = "incomplete: timed out"
        if problem:
            self._supply.stop()
            for trace in self._open.values():
                trace.failure = problem
                trace.ended = time.monotonic()
                self._supply.finish(trace)
            self._parts.clear()
            self.close()


async def run_grpc(plan: Plan) -> list[Trace]:
    """Carry out `plan` over gRPC.

    Raises:
        OSError: the server cannot be reached, or closes the connection.
    """
    supply = Supply(plan, [infer_request(plan.target, body) for body in bodies(plan)])
    loop = asyncio.get_running_loop()
    _, load = await loop.create_connection(lambda: _Load(supply), plan.target.host, plan.target.port)
    watch = asyncio.ensure_future(_watch(load))
    try:
        supply.start()
        for _ in range(supply.workers):
            load.next_call()
        await supply.finished
    finally:
        watch.cancel()
        load.close()
    return supply.traces


async def _watch(load: _Load) -> None:
    while True:
        await asyncio.sleep(_WATCH_INTERVAL_S)
        load.give_up()
