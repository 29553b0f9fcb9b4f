"""Requests of coding agents, as they came from the programs: every field and every kind of tool and item that they had.

Recorded by a loopback server from Codex CLI 0.171.0 and Claude Code 2.1.197, each at the start of a task (`first`) and
after three calls (`later`). Texts, schemas' descriptions, ids and the grammar of `apply_patch` are replaced by our own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine_types import PromptRequest, PromptResult
from tests.unit.api.http_support import asked
from tests.unit.core_support import EOS, Answered, Bench, engine_info, token_ids

REQUESTS = Path(__file__).parent / "requests"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
CONTEXT = 32_768
"""A model's that has no room for the 32,000 tokens of Claude Code and its prompt."""
PROMPT_TOKENS = 20_000


def recorded(name: str, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((REQUESTS / f"{name}.json").read_bytes())
    return body | {"model": "tiny"} | changes


def sent(path: str, body: dict[str, Any]) -> tuple[Answered, PromptRequest]:
    """The answer, and what the chat template was given."""
    bench = Bench(engine_info(max_model_len=CONTEXT))
    bench.prompts.result = PromptResult([token_ids("p") * PROMPT_TOKENS])

    def feed() -> None:
        if bench.engine.requests:
            bench.engine.deliver(0, "done", "stop", stop_token_id=EOS)

    answered = asked(bench, path, body, feed)
    assert answered.status == 200, answered.body
    (prompt,) = bench.prompts.requests
    return answered, prompt


def names(prompt: PromptRequest) -> list[str]:
    """Names of the functions that the model is offered."""
    return [tool["function"]["name"] for tool in prompt.tools or []]


def told(prompt: PromptRequest) -> str:
    """All that the model is told, the calls included."""
    return json.dumps(prompt.messages)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["codex_first", "codex_later"])
def test_codex(name: str, stream: bool) -> None:
    body = recorded(name, stream=stream)
    answered, prompt = sent(RESPONSES, body)
    assert b"done" in answered.body
    offered = names(prompt)
    functions = [tool["name"] for tool in body["tools"] if tool["type"] in ("function", "custom")]
    assert set(functions) <= set(offered)
    (namespace,) = [tool for tool in body["tools"] if tool["type"] == "namespace"]
    flat = [name for name in offered if name not in functions]
    assert len(flat) == len(namespace["tools"])
    assert len(set(offered)) == len(offered)
    for tool, flat_name in zip(namespace["tools"], flat, strict=True):
        assert tool["name"] in flat_name
    assert not [name for name in offered if "web_search" in name]


def test_what_codex_gives_back_is_told_to_the_model() -> None:
    body = recorded("codex_later")
    _, prompt = sent(RESPONSES, body)
    calls = [call["function"]["name"] for message in prompt.messages or [] for call in message.get("tool_calls") or ()]
    assert calls[:2] == ["exec_command", "apply_patch"]
    assert calls[2] in names(prompt)
    assert "close_agent" in calls[2]
    outputs = [item["output"] for item in body["input"] if item["type"].endswith("_output")]
    assert [message["content"] for message in prompt.messages or [] if message["role"] == "tool"] == outputs
    assert "*** Update File: greet.py" in told(prompt)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["claude_first", "claude_later"])
def test_claude_code(name: str, stream: bool) -> None:
    body = recorded(name, stream=stream)
    answered, prompt = sent(MESSAGES, body)
    assert b"done" in answered.body
    assert names(prompt) == [tool["name"] for tool in body["tools"]]
    assert "x-anthropic-billing-header" not in told(prompt)
    assert "Greet in greet.py" in told(prompt)


@pytest.mark.parametrize("name", ["claude_first", "claude_later"])
def test_claude_code_counts_the_same_prompt(name: str) -> None:
    body = recorded(name)
    _, prompt = sent(MESSAGES, body)
    counted = {key: value for key, value in body.items() if key not in ("max_tokens", "stream", "metadata")}
    answered, same = sent(COUNT, counted)
    assert answered.json()["input_tokens"] == PROMPT_TOKENS
    assert (same.messages, same.tools) == (prompt.messages, prompt.tools)


def test_what_claude_code_gives_back_is_told_to_the_model() -> None:
    body = recorded("claude_later")
    _, prompt = sent(MESSAGES, body)
    calls = [call["function"]["name"] for message in prompt.messages or [] for call in message.get("tool_calls") or ()]
    assert calls == ["Read", "Edit", "Bash"]
    results = [
        part["content"]
        for message in body["messages"]
        for part in message["content"]
        if isinstance(part, dict) and part["type"] == "tool_result"
    ]
    assert [message["content"] for message in prompt.messages or [] if message["role"] == "tool"] == results
