"""A gRPC server in the shape of Triton's ModelStreamInfer: as many responses as a request asks for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2


def _responses(requests: Iterator[Any], context: Any) -> Iterator[Any]:
    for request in requests:
        [length] = [one for one in request.inputs if one.name in ("request_output_len", "max_tokens")]
        tokens = length.contents.int_contents[0]
        for token in range(tokens):
            if request.model_name == "aborts" and token == tokens // 2:
                context.abort(grpc.StatusCode.INTERNAL, "it broke")
            if request.model_name == "reports" and token == tokens // 2:
                yield service_pb2.ModelStreamInferResponse(error_message="the engine failed")
                return
            response = service_pb2.ModelStreamInferResponse()
            output = response.infer_response.outputs.add()
            output.name, output.datatype = "output_ids", "INT32"
            response.infer_response.raw_output_contents.append(token.to_bytes(4, "little"))
            yield response


@contextmanager
def grpc_server() -> Iterator[int]:
    """Run it; gives its port."""
    handler = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService",
        {
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
                _responses,
                request_deserializer=service_pb2.ModelInferRequest.FromString,
                response_serializer=service_pb2.ModelStreamInferResponse.SerializeToString,
            )
        },
    )
    server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None)
