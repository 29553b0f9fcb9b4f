"""`input_audio` parts of chats: refused by name, but for chat models, which get a chat as it is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import Bench
from tests.unit.pipeline.task_models.task_support import model

AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
CHAT = [{"role": "user", "content": [{"type": "text", "text": "hi"}, AUDIO]}]
INPUT = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}, AUDIO]}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": CHAT}, "messages[0].content[1].type"),
        ("/v1/chat/completions/render", {"messages": CHAT}, "messages[0].content[1].type"),
        ("/tokenize", {"messages": CHAT}, "messages[0].content[1].type"),
        ("/v1/classify", {"messages": CHAT}, "messages[0].content[1].type"),
        ("/v1/responses", {"input": INPUT}, "input[0].content[1].type"),
        ("/v1/decisions", {"input": INPUT, "questions": [{"type": "predicate"}]}, "input[0].content[1].type"),
    ],
)
def test_it_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    assert refused(Bench(), path, body)[:2] == (400, param)


def test_messages_have_no_such_part() -> None:
    answer = asked(Bench(), "/v1/messages", {"model": "tiny", "max_tokens": 5, "messages": CHAT})
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "messages.0.content.1" in answer.json()["error"]["message"]


def test_a_chat_model_gets_it() -> None:
    bench = Bench()
    bench.service.models.tasks.replace([model("chat", "poet", max_batch_size=0)])
    choice = {"index": 0, "message": {"role": "assistant", "content": "heard"}, "finish_reason": "stop"}
    answer = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice]}).encode()
    bench.model_calls.models["poet"] = lambda _: {"response": np.array([answer], object)}
    found = asked(bench, "/v1/chat/completions", {"model": "poet", "messages": CHAT}).json()
    assert found["choices"][0]["message"]["content"] == "heard"
    ((_, inputs),) = bench.model_calls.called
    assert json.loads(inputs["request"].item())["messages"] == CHAT
