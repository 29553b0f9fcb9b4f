"""gRPC connection to Triton, and its messages: tensors of any model, and the official ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from openai_bls.transport.model_calls import Array, Arrays

_CHANNEL_OPTIONS = (
    # Loopback, whatever the environment says of proxies.
    ("grpc.enable_http_proxy", 0),
    # Log-probabilities of long outputs, biases of large vocabularies.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # While the server starts. The least backoff keeps its 20 s: it is also how long an attempt may take.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

# Without it a last response that brings nothing is not sent.
_PARAMETERS = {"triton_enable_empty_final_response": service_pb2.InferParameter(bool_param=True)}
OUTPUTS = ("output_ids", "sequence_length")
"""Official outputs that the backend wants to be asked for, whatever else is."""
LOG_PROBS = "output_log_probs"
"""The official output of log-probabilities."""


class Response(NamedTuple):
    """One response of a stream."""

    token_ids: list[int]
    log_probs: list[float] | None
    final: bool
    error: str
    """Empty if there is none."""


def open_channel(address: str) -> Any:
    """A channel to Triton's gRPC front end at this host and port; it connects with its first call."""
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)


async def done_writing(call: Any) -> None:
    """Tell the server that a stream has no further request, unless the server is ending it at this moment."""
    # grpc says so by an error of its own, which is none of the call's.
    with contextlib.suppress(grpc.aio.InternalError):
        await call.done_writing()


def infer_request(model: str, arrays: Mapping[str, Array], outputs: Iterable[str], request_id: str = "") -> Any:
    """A `ModelInferRequest`.

    Args:
        model: name of the model that gets the request.
        arrays: the input tensors by name.
        outputs: names of the output tensors wanted.
        request_id: Triton's id of the request, by which a stop request finds it.
    """
    inputs, contents = [], []
    for name, array in arrays.items():
        datatype = np_to_triton_dtype(array.dtype)
        inputs.append(
            service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=list(array.shape))
        )
        contents.append(serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes())
    return service_pb2.ModelInferRequest(
        model_name=model,
        id=request_id,
        inputs=inputs,
        raw_input_contents=contents,
        outputs=[service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs],
        parameters=_PARAMETERS,
    )


def is_final(message: Any) -> bool:
    """True if a `ModelStreamInferResponse` is its request's last."""
    # An error is not final by itself where the request did not get as far as the model; but nothing follows it.
    return bool(message.error_message or message.infer_response.parameters["triton_final_response"].bool_param)


def read_arrays(message: Any) -> Arrays:
    """The output tensors of a `ModelStreamInferResponse`, none in one that is only the end."""
    response = message.infer_response
    return {
        output.name: (
            deserialize_bytes_tensor(content)
            if output.datatype == "BYTES"
            else np.frombuffer(content, dtype=triton_to_np_dtype(output.datatype))
        ).reshape(tuple(output.shape))
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def read(message: Any) -> Response:
    """Content of a `ModelStreamInferResponse` with the official tensors."""
    response = message.infer_response
    if message.error_message:
        return Response([], None, True, message.error_message)
    token_ids: list[int] = []
    log_probs: list[float] | None = None
    length = -1
    for output, content in zip(response.outputs, response.raw_output_contents, strict=False):
        match output.name:
            case "output_ids":
                token_ids = memoryview(content).cast("i").tolist()
            case "sequence_length":
                length = memoryview(content).cast("i")[0]
            case "output_log_probs":
                log_probs = np.frombuffer(content, dtype=np.float32).tolist()
    # Beyond it is padding.
    return Response(token_ids[:length] if length >= 0 else token_ids, log_probs, is_final(message), "")
