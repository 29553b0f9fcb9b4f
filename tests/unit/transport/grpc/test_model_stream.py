"""Against a gRPC server of the real protocol, with a model that each test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from openai_bls.transport.grpc.model_stream import GrpcModelStreams
from openai_bls.transport.model_calls import Arrays, ModelCallError, ModelTimeoutError, ModelUnavailableError
from tests.unit.core_support import WAIT_S

Answers = Callable[[Any, Any], AsyncIterator[Any]]


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.address = ""
        self.cancelled = asyncio.Event()
        self.closed_by_client = asyncio.Event()

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
        try:
            async for request in requests:
                async for answer in self.answers(request, context):
                    yield answer
            self.closed_by_client.set()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def serving(answers: Answers, kind: type[Triton] = Triton) -> AsyncIterator[tuple[Triton, GrpcModelStreams]]:
    triton = kind(answers)
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    triton.address = f"127.0.0.1:{port}"
    streams = GrpcModelStreams(triton.address)
    async with AsyncExitStack() as stack:
        # Always: one that goes on hangs the process when it is collected.
        stack.push_async_callback(server.stop, 0)
        stack.push_async_callback(streams.close)
        yield triton, streams


def response(*, final: bool = False, **arrays: Any) -> Any:
    answer = service_pb2.ModelInferResponse()
    answer.parameters["triton_final_response"].bool_param = final
    for name, array in arrays.items():
        datatype = np_to_triton_dtype(array.dtype)
        answer.outputs.add(name=name, shape=list(array.shape), datatype=datatype)
        content = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        answer.raw_output_contents.append(content)
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


def error(message: str) -> Any:
    return service_pb2.ModelStreamInferResponse(
        error_message=message, infer_response=service_pb2.ModelInferResponse(id="1")
    )


def text(*values: bytes) -> Any:
    return np.array(values, dtype=np.object_)


@asynccontextmanager
async def slow_front_end(address: str, seconds: float) -> AsyncIterator[str]:
    """Address of a front end that says nothing on a new connection for some seconds."""
    host, port = address.split(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError), closing(writer):
            while data := await reader.read(65536):
                writer.write(data)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        server = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, server[1]), copy(server[0], writer))

    front = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with front:
        yield f"127.0.0.1:{front.sockets[0].getsockname()[1]}"


def open_stream(streams: GrpcModelStreams, timeout_s: float = WAIT_S) -> AsyncIterator[Arrays]:
    return streams.stream("rag", {"request": text(b"ask")}, ["response"], timeout_s=timeout_s)


async def read(streams: GrpcModelStreams, timeout_s: float = WAIT_S) -> list[Arrays]:
    return [arrays async for arrays in open_stream(streams, timeout_s)]


async def soon(what: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(what, WAIT_S)


async def test_tensors_go_in_and_responses_come_in_order() -> None:
    asked = []

    async def answers(request: Any, _: Any) -> AsyncIterator[Any]:
        asked.append(request)
        yield response(response=text(b"a", "é".encode()), scores=np.array([[1.5, 2.0]], dtype=np.float32))
        yield response(response=text(b""))
        yield response(final=True)

    async with serving(answers) as (triton, streams):
        first, second = await soon(read(streams))
        # The client closed the stream; it was not broken off.
        await soon(triton.closed_by_client.wait())
    assert first["response"].tolist() == [b"a", "é".encode()]
    assert (first["scores"].tolist(), first["scores"].dtype) == ([[1.5, 2.0]], np.float32)
    assert second["response"].tolist() == [b""]
    (request,) = asked
    assert (request.model_name, [output.name for output in request.outputs]) == ("rag", ["response"])
    assert request.raw_input_contents == [serialize_byte_tensor(text(b"ask")).item()]


@pytest.mark.usefixtures("too_late")
async def test_a_server_that_ends_a_stream_first() -> None:
    class Ends(Triton):
        async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
            await anext(requests)
            yield response(response=text(b"a"), final=True)

    async def fails(*_: Any) -> AsyncIterator[Any]:
        yield error("no more")

    async with serving(fails, Ends) as (_, streams):
        (answer,) = await soon(read(streams))
        assert answer["response"].tolist() == [b"a"]
    async with serving(fails) as (_, streams):
        with pytest.raises(ModelCallError, match="no more"):
            await soon(read(streams))


async def test_many_requests_share_the_connection() -> None:
    async def answers(request: Any, _: Any) -> AsyncIterator[Any]:
        for number in range(3):
            await asyncio.sleep(0)
            yield response(response=text(b"%d" % number), final=number == 2)

    async with serving(answers) as (_, streams):
        all_read = await soon(asyncio.gather(*(read(streams) for _ in range(20))))
    assert [[arrays["response"].item() for arrays in each] for each in all_read] == [[b"0", b"1", b"2"]] * 20


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("Request for unknown model: 'rag' is not found", ModelUnavailableError, "the model 'rag' is not loaded"),
        (
            "Request for unknown model: 'rag' has no available versions",
            ModelUnavailableError,
            "the model 'rag' is not loaded",
        ),
        # A model's own words, whatever they are.
        ("the document is not found", ModelCallError, "the model 'rag': the document is not found"),
    ],
)
async def test_errors_of_triton_and_of_the_model(said: str, kind: type[ModelCallError], message: str) -> None:
    async def answers(*_: Any) -> AsyncIterator[Any]:
        yield error(said)

    async with serving(answers) as (_, streams):
        with pytest.raises(ModelCallError) as raised:
            await soon(read(streams))
    assert (type(raised.value), str(raised.value)) == (kind, message)


async def hang(*_: Any) -> AsyncIterator[Any]:
    yield response(response=text(b"a"))
    await asyncio.Event().wait()


async def test_a_model_that_hangs_meets_the_deadline() -> None:
    async with serving(hang) as (triton, streams):
        with pytest.raises(ModelTimeoutError, match=r"'rag' .* 0\.2 s"):
            await soon(read(streams, timeout_s=0.2))
        await soon(triton.cancelled.wait())


@pytest.mark.parametrize("reader_is_cancelled", [False, True])
async def test_leaving_a_stream_cancels_the_request(reader_is_cancelled: bool) -> None:
    async with serving(hang) as (triton, streams):
        stream: Any = open_stream(streams)
        await soon(stream.__anext__())
        if reader_is_cancelled:
            reader = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        else:
            await stream.aclose()
        await soon(triton.cancelled.wait())


async def test_closing_ends_open_streams_with_an_error() -> None:
    async with serving(hang) as (_, streams):
        stream = open_stream(streams)
        await soon(stream.__anext__())
        await streams.close()
        with pytest.raises(ModelUnavailableError):
            await soon(stream.__anext__())


async def test_a_server_that_is_not_there() -> None:
    streams = GrpcModelStreams("127.0.0.1:1")
    try:
        with pytest.raises(ModelUnavailableError, match="gRPC front end"):
            await soon(read(streams))
    finally:
        await streams.close()


@pytest.mark.parametrize(("end", "says"), [("error", "no more"), ("abort", "broke off"), ("nothing", "broke off")])
async def test_an_end_in_the_middle_comes_after_what_was_sent(end: str, says: str) -> None:
    class Ends(Triton):
        async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
            await anext(requests)
            yield response(response=text(b"a"))
            if end == "error":
                yield error("no more")
            elif end == "abort":
                await context.abort(grpc.StatusCode.INTERNAL, "boom")

    async with serving(hang, Ends) as (_, streams):
        stream = open_stream(streams)
        assert (await soon(stream.__anext__()))["response"].item() == b"a"
        with pytest.raises(ModelCallError, match=says):
            await soon(stream.__anext__())


@pytest.mark.parametrize("early", ["the model fails", "the reader stops", "the reader is cancelled"])
async def test_a_stream_that_is_about_to_end_is_not_broken_off(early: str) -> None:
    """The server may lose a request whose stream breaks off just as it ends."""
    go_on = asyncio.Event()

    async def answers(*_: Any) -> AsyncIterator[Any]:
        yield error("no more") if early == "the model fails" else response(response=text(b"a"))
        await go_on.wait()
        yield response(final=True)

    async with serving(answers) as (triton, streams):
        stream: Any = open_stream(streams)
        if early == "the model fails":
            with pytest.raises(ModelCallError, match="no more"):
                await soon(stream.__anext__())
        else:
            await soon(stream.__anext__())
        if early == "the reader is cancelled":
            reader = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        await stream.aclose()
        go_on.set()
        await soon(triton.closed_by_client.wait())
        assert not triton.cancelled.is_set()


async def test_a_connection_that_a_busy_server_is_slow_to_accept() -> None:
    async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
        yield response(response=text(b"late"), final=True)

    async with serving(answers) as (triton, _), slow_front_end(triton.address, 0.5) as address:
        streams = GrpcModelStreams(address)
        try:
            found = [arrays["response"].item() async for arrays in open_stream(streams)]
        finally:
            await streams.close()
    assert found == [b"late"]
