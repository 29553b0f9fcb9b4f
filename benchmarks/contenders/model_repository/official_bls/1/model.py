"""Triton model `official_bls`: the official BLS pattern, written from its description.

Each request has a thread of its own. The thread calls preprocessing, opens a decoupled BLS stream to the engine, and
for every token calls postprocessing with all the tokens so far and waits for the text. Several such streams in one
stub may deadlock or corrupt the heap (triton-inference-server/server 8882): that belongs to what is measured.
"""

import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def call(model: str, tensor: Any, output: str) -> Any:
    """A blocking BLS call with one tensor there and one back, as an array."""
    request = pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=[output])
    return result(request.exec(), output)


def result(response: Any, output: str) -> Any:
    """The array `output` of a BLS response; None if it holds none, as the empty one at a stream's end."""
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    tensor = pb_utils.get_output_tensor_by_name(response, output)
    return None if tensor is None else tensor.as_numpy()


class TritonPythonModel:
    """Starts a thread for each request."""

    def execute(self, requests: list[Any]) -> None:
        """Return at once; the threads answer."""
        for request in requests:
            query = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            length = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy()
            sender = request.get_response_sender()
            threading.Thread(target=self.answer, args=(query, length, sender), daemon=True).start()

    def answer(self, query: Any, length: Any, sender: Any) -> None:
        """Everything for one request. The only thread that uses `sender`, hence no lock; FINAL on every path."""
        last = None
        try:
            for text in self.texts(query, length):
                output = pb_utils.Tensor("text_output", np.array([text], dtype=np.object_))
                sender.send(pb_utils.InferenceResponse([output]))
        except Exception as error:
            last = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        if last is None:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            sender.send(last, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def texts(self, query: Any, length: Any) -> Any:
        """The text so far, after each token."""
        prompt = call("preprocessing", pb_utils.Tensor("QUERY", query), "INPUT_ID")
        request = pb_utils.InferenceRequest(
            model_name="bare",
            inputs=[pb_utils.Tensor("input_ids", prompt), pb_utils.Tensor("request_output_len", length)],
            requested_output_names=["output_ids"],
        )
        tokens: list[int] = []
        for response in request.exec(decoupled=True):
            ids = result(response, "output_ids")
            if ids is None:
                continue
            tokens += ids.tolist()
            so_far = pb_utils.Tensor("TOKENS", np.array(tokens, dtype=np.int32))
            yield call("postprocessing", so_far, "OUTPUT").item()
