"""A chat model that does what the last message tells it, as JSON: `{"do": ..., ...}`."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PAUSE = threading.Event()
URL = f"http://127.0.0.1:{os.environ['OPENAI_BLS_HTTP_PORT']}"


def chunk(content: str) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}


def answer(content: str, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    } | more


def post(path: str, body: Any) -> Any:
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.folder = Path(args["model_repository"])

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if self.decoupled:
            for request in requests:
                body = self.body(request)
                threading.Thread(target=self.stream, args=(body, request.get_response_sender()), daemon=True).start()
            return None
        return [self.response(next(self.responses(self.body(request), None))) for request in requests]

    def body(self, request: Any) -> Any:
        return json.loads(pb_utils.get_input_tensor_by_name(request, "request").as_numpy()[0])

    def response(self, value: Any) -> Any:
        if isinstance(value, Exception):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(value)))
        text = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("response", np.array([text], np.object_))])

    def stream(self, body: Any, sender: Any) -> None:
        try:
            for value in self.responses(body, sender):
                sender.send(self.response(value))
        finally:
            sender.send(flags=FINAL)

    def responses(self, body: Any, sender: Any) -> Any:
        task = json.loads(body["messages"][-1]["content"])
        return getattr(self, "do_" + task.pop("do"))(body, sender, **task)

    def do_echo(self, body: Any, sender: Any) -> Any:
        yield answer("echo", seen=body)

    def do_chunks(self, body: Any, sender: Any, contents: list[str]) -> Any:
        yield from map(chunk, contents)
        yield {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

    def do_error(self, body: Any, sender: Any, error: Any) -> Any:
        yield {"error": error}

    def do_refuse(self, body: Any, sender: Any) -> Any:
        yield ValueError("no such index")

    def do_raise(self, body: Any, sender: Any) -> Any:
        raise ValueError("unforeseen")

    def do_text(self, body: Any, sender: Any, text: str) -> Any:
        yield text

    def do_nothing(self, body: Any, sender: Any) -> Any:
        yield from ()

    def do_hang(self, body: Any, sender: Any) -> Any:
        while not sender.is_cancelled():
            PAUSE.wait(0.01)
        (self.folder / "cancelled").touch()
        yield answer("late")

    def do_flood(self, body: Any, sender: Any) -> Any:
        while not sender.is_cancelled():
            yield chunk("x" * 4096)
        (self.folder / "cancelled").touch()

    def do_pace(self, body: Any, sender: Any, count: int, interval_s: float) -> Any:
        for _ in range(count):
            PAUSE.wait(interval_s)
            yield chunk("x")

    def do_ask(self, body: Any, sender: Any, path: str, asked: Any) -> Any:
        yield answer("asked", seen=post(path, asked))
