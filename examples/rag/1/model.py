"""Retrieval-augmented generation: the passage nearest to the question goes before it, and /v1 answers."""

import http.client
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

PASSAGES = ["Machine learning finds patterns in examples.", "A KV cache stores keys and values of earlier tokens."]
PORT = int(os.environ.get("OPENAI_BLS_HTTP_PORT", "9000"))
HEADERS = {"Authorization": f"Bearer {os.environ.get('OPENAI_BLS_API_KEY')}"}
THREADS = ThreadPoolExecutor(64)


def answers(body: dict[str, Any]) -> Any:
    """The whole answer, the chunks of a stream, or an error of /v1; each with the passage that was found."""
    texts = np.array([[text.encode()] for text in (*PASSAGES, str(body["messages"][-1].get("content")))], np.object_)
    inputs = [pb_utils.Tensor("text", texts)]
    call = pb_utils.InferenceRequest(inputs=inputs, requested_output_names=["embedding"], model_name="embedding")
    vectors = pb_utils.get_output_tensor_by_name(call.exec(), "embedding").as_numpy()
    passage = PASSAGES[int(np.argmax(vectors[:-1] @ vectors[-1]))]
    body = {**body, "model": None, "messages": [{"role": "system", "content": passage}, *body["messages"]]}
    v1 = http.client.HTTPConnection("127.0.0.1", PORT)
    v1.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
    lines = (line.removeprefix(b"data: ") for line in v1.getresponse())
    yield from ({**json.loads(line), "retrieved": passage} for line in lines if line.startswith(b"{"))


class TritonPythonModel:
    """Answers each request in a thread, so that several are in progress."""

    def execute(self, requests: list[Any]) -> None:
        """Hand every request to a thread."""
        for request in requests:
            body = json.loads(pb_utils.get_input_tensor_by_name(request, "request").as_numpy()[0])
            THREADS.submit(self.answer, body, request.get_response_sender())

    def answer(self, body: dict[str, Any], sender: Any) -> None:
        """One response per answer or chunk, until the client has gone; then the end."""
        try:
            for answer in answers(body):
                text = np.array([json.dumps(answer).encode()], np.object_)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("response", text)]))
                if sender.is_cancelled():
                    break
        except Exception as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(error))))
        finally:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
