"""On the real server: answers with a broken call, cut after any token, are sent back, and `max_tokens` has no end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton.conftest import CHECKPOINT

pytestmark = pytest.mark.triton

TEXT = 'So.\n<tool_call>\n{"name": "f", "arguments": {"a": "C:\\dir\n\ud83d"}}\n</tool_call><tool_call>{"name'.replace(
    "\ud83d", "\\ud83d"
)
USER = {"role": "user", "content": "hi"}
CONTEXT = 2048


@pytest.fixture(scope="module")
def text_ids() -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(CHECKPOINT).encode(TEXT, add_special_tokens=False)
    return ids


@pytest.fixture(scope="module")
def client(repository: Path, text_ids: list[int]) -> Iterator[httpx.Client]:
    env = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_ENGINE_NULL_TOKEN_IDS": ",".join(map(str, text_ids))}
    with run_server(repository, env=env) as server, _client(server) as client:
        yield client


def _client(server: RunningServer) -> httpx.Client:
    return httpx.Client(base_url=server.openai_url, timeout=60)


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, json={"model": "openai_bls", **body})
    assert response.status_code == 200, (response.text, body)
    return response.json()


def test_chat(client: httpx.Client, text_ids: list[int]) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for count in range(1, len(text_ids) + 1):
        body = {"tools": tools, "max_tokens": count}
        choice = post(client, "chat/completions", {"messages": [USER], **body})["choices"][0]
        assert choice["finish_reason"] == "length"
        assert "So.\n".startswith(choice["message"]["content"] or "")
        for rest in ([USER], []):
            post(client, "chat/completions", {"messages": [USER, choice["message"], *rest], **body})


def test_responses(client: httpx.Client, text_ids: list[int]) -> None:
    tools = [{"type": "function", "name": "f"}]
    for count in range(1, len(text_ids) + 1):
        body = {"tools": tools, "max_output_tokens": count}
        response = post(client, "responses", {"input": [USER], **body})
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        post(client, "responses", {"input": [USER, *response["output"], USER], **body})
        post(client, "responses", {"input": "Go on.", "previous_response_id": response["id"], **body})


def test_messages(client: httpx.Client, text_ids: list[int]) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    for count in range(1, len(text_ids) + 1):
        body = {"tools": tools, "max_tokens": count}
        message = post(client, "messages", {"messages": [USER], **body})
        assert message["stop_reason"] == "max_tokens"
        said = {"role": "assistant", "content": message["content"]}
        for rest in ([USER], []):
            post(client, "messages", {"messages": [USER, said, *rest], **body})


def test_max_tokens_beyond_the_context(client: httpx.Client) -> None:
    """The answer goes on to the context's end, which each API names in its own word."""
    chat = post(client, "chat/completions", {"messages": [USER], "max_tokens": 32_000})
    assert chat["choices"][0]["finish_reason"] == "length"
    text = post(client, "completions", {"prompt": "hi", "max_tokens": 32_000})
    assert text["choices"][0]["finish_reason"] == "length"
    assert [one["usage"]["total_tokens"] for one in (chat, text)] == [CONTEXT, CONTEXT]
    response = post(client, "responses", {"input": [USER], "max_output_tokens": 32_000})
    assert (response["status"], response["max_output_tokens"]) == ("incomplete", 32_000)
    message = post(client, "messages", {"messages": [USER], "max_tokens": 32_000})
    assert message["stop_reason"] == "model_context_window_exceeded"
    full = client.post("completions", json={"prompt": [1] * CONTEXT, "max_tokens": 1})
    assert (full.status_code, full.json()["error"]["code"]) == (400, "context_length_exceeded")
