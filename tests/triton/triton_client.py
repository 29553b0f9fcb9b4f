"""How the tests talk to Triton's own endpoints: HTTP generate and generate_stream, and gRPC."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as grpcclient

TIMEOUT = 120.0


class TritonError(Exception):
    """What the server said instead of an answer."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(f"{status}: {error}")
        self.status = status
        self.error = error

    @property
    def body(self) -> dict[str, Any]:
        """The OpenAI error body that openai_bls puts into Triton's error text."""
        body: dict[str, Any] = json.loads(self.error)
        return body


def generate(url: str, model: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST /v2/models/{model}/generate."""
    response = httpx.post(f"{url}/v2/models/{model}/generate", json=body, timeout=TIMEOUT)
    answer: dict[str, Any] = response.json()
    if "error" in answer:
        raise TritonError(response.status_code, answer["error"])
    return answer


def generate_stream(url: str, model: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """POST /v2/models/{model}/generate_stream: its events."""
    address = f"{url}/v2/models/{model}/generate_stream"
    with httpx.stream("POST", address, json=body, timeout=TIMEOUT) as response:
        for line in response.iter_lines():
            if not line:
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise TritonError(response.status_code, event["error"])
            yield event


def chat(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """A whole answer of openai_bls on generate."""
    answer: dict[str, Any] = json.loads(generate(url, "openai_bls", body)["response"])
    return answer


def chat_stream(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of openai_bls on generate_stream."""
    events = generate_stream(url, "openai_bls", {**body, "stream": True})
    return [json.loads(event["response"]) for event in events]


def content(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a chat or completion stream."""
    pieces = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                pieces.append(choice["delta"].get("content") or "" if "delta" in choice else choice["text"])
    return "".join(pieces)


def infer_input(name: str, values: Any, datatype: str) -> grpcclient.InferInput:
    """An input tensor; BYTES from a list of str or bytes."""
    if datatype == "BYTES":
        values = [value.encode() if isinstance(value, str) else value for value in values]
        array = np.array(values, dtype=np.object_)
    else:
        array = np.asarray(values)
    tensor = grpcclient.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


class GrpcStream:
    """One bidirectional gRPC stream; responses come in order of arrival."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self._client = grpcclient.InferenceServerClient(url)
        self._results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._outstanding = 0
        self._client.start_stream(lambda result, error: self._results.put((result, error)), headers=headers)

    def __enter__(self) -> GrpcStream:
        return self

    def __exit__(self, *exception: object) -> None:
        # Tritonserver 2.51.0 may lose a request that is cancelled just as it ends, and never unload its model.
        self._client.stop_stream(cancel_requests=self._outstanding > 0)
        self._client.close()

    def send(
        self,
        model: str,
        inputs: list[grpcclient.InferInput],
        parameters: dict[str, Any] | None = None,
        request_id: str = "",
        timeout_us: int | None = None,
        outputs: list[str] | None = None,
        empty_final: bool = True,
    ) -> None:
        """Send one request; `timeout_us` is Triton's own timeout, in microseconds, `outputs` those that are named.

        Without `empty_final` the end is not told unless a response comes with it: read by `first`.
        """
        self._outstanding += 1
        self._client.async_stream_infer(
            model,
            inputs,
            outputs=[grpcclient.InferRequestedOutput(name) for name in outputs] if outputs else None,
            request_id=request_id,
            parameters=parameters,
            timeout=timeout_us,
            enable_empty_final_response=empty_final,
        )

    def first(self) -> Any:
        """The first response of a request that has one."""
        result, error = self._results.get(timeout=TIMEOUT)
        self._outstanding -= 1
        if error is not None:
            raise TritonError(0, error.message())
        return result

    def responses(self) -> Iterator[Any]:
        """The responses of one request, without the empty final one."""
        while True:
            result, error = self._results.get(timeout=TIMEOUT)
            if error is not None:
                self._outstanding -= 1
                raise TritonError(0, error.message())
            response = result.get_response()
            if response.outputs:
                yield result
            if response.parameters["triton_final_response"].bool_param:
                self._outstanding -= 1
                return


def grpc_chat(
    url: str,
    inputs: list[grpcclient.InferInput],
    parameters: dict[str, Any],
    headers: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """All responses of openai_bls to one gRPC request."""
    with GrpcStream(url, headers) as stream:
        stream.send("openai_bls", inputs, parameters)
        return [json.loads(r.as_numpy("response").reshape(-1)[0]) for r in stream.responses()]
