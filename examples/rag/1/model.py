"""Retrieval-augmented generation: the passage nearest to the question goes before it, and /v1 answers."""

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

PASSAGES = [
    "Machine learning: a model finds patterns in many examples, and uses them on new data.",
    "KV cache: keys and values of all earlier tokens are stored, so that each is computed once.",
]
PORT = int(os.environ.get("OPENAI_BLS_HTTP_PORT", "9000"))
HEADERS = {"Authorization": f"Bearer {os.environ.get('OPENAI_BLS_API_KEY')}"}


def embed(texts: list[str]) -> Any:
    """One vector per text, by a BLS call of the model `embedding`."""
    inputs = [pb_utils.Tensor("text", np.array([[text.encode()] for text in texts], np.object_))]
    call = pb_utils.InferenceRequest(inputs=inputs, requested_output_names=["embedding"], model_name="embedding")
    return pb_utils.get_output_tensor_by_name(call.exec(), "embedding").as_numpy()


def answers(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The whole answer, the chunks of a stream, or an error of /v1, with the passage that was found."""
    vectors = embed([*PASSAGES, str(body["messages"][-1].get("content"))])
    passage = PASSAGES[int(np.argmax(vectors[:-1] @ vectors[-1]))]
    messages = [{"role": "system", "content": passage}, *body["messages"]]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", PORT)) as v1:
        v1.request("POST", "/v1/chat/completions", json.dumps({**body, "model": None, "messages": messages}), HEADERS)
        lines = (line.removeprefix(b"data: ") for line in v1.getresponse())
        yield from ({**json.loads(line), "retrieved": passage} for line in lines if line.startswith(b"{"))


class TritonPythonModel:
    """Several requests at a time, each in a thread."""

    def initialize(self, args: dict[str, str]) -> None:
        self.threads = ThreadPoolExecutor(64)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.threads.submit(self.answer, request, request.get_response_sender())

    def answer(self, request: Any, sender: Any) -> None:
        try:
            for answer in answers(json.loads(pb_utils.get_input_tensor_by_name(request, "request").as_numpy()[0])):
                if sender.is_cancelled():
                    break
                text = np.array([json.dumps(answer).encode()], np.object_)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("response", text)]))
        finally:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
