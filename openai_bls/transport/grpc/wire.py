"""gRPC messages of Triton that carry the official tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

# Without it a last response that brings nothing is not sent.
_PARAMETERS = {"triton_enable_empty_final_response": service_pb2.InferParameter(bool_param=True)}
# The backend wants the first two to be asked for, whatever else is.
_OUTPUTS = ("output_ids", "sequence_length")
_LOG_PROBS = "output_log_probs"


class Response(NamedTuple):
    """One response of a stream."""

    token_ids: list[int]
    log_probs: list[float] | None
    final: bool
    error: str
    """Empty if there is none."""


def infer_request(model: str, request_id: str, arrays: Mapping[str, np.ndarray[Any, Any]], *, log_probs: bool) -> Any:
    """A `ModelInferRequest` with these input tensors.

    Args:
        model: to ask.
        request_id: Triton's, by which a stop request finds it.
        arrays: the input tensors by name.
        log_probs: ask for them.
    """
    inputs, contents = [], []
    for name, array in arrays.items():
        datatype = np_to_triton_dtype(array.dtype)
        inputs.append(
            service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=list(array.shape))
        )
        contents.append(serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes())
    names = (*_OUTPUTS, _LOG_PROBS) if log_probs else _OUTPUTS
    return service_pb2.ModelInferRequest(
        model_name=model,
        id=request_id,
        inputs=inputs,
        raw_input_contents=contents,
        outputs=[service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names],
        parameters=_PARAMETERS,
    )


def read(message: Any) -> Response:
    """Content of a `ModelStreamInferResponse`."""
    response = message.infer_response
    final = response.parameters["triton_final_response"].bool_param
    if message.error_message:
        # Not final by itself where the request did not get as far as the model; but nothing follows it.
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
    return Response(token_ids[:length] if length >= 0 else token_ids, log_probs, final, "")
