"""Requests in the shape of Claude Code's, captured from 2.1.197, with texts of our own: they are taken as they come."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.http_support import asked
from tests.unit.api.messages.messages_support import events_of
from tests.unit.core_support import EOS, Bench, engine_info

CACHED = {"cache_control": {"type": "ephemeral"}}
NAMES = (
    *("Task", "Bash", "Glob", "Grep", "Read", "Edit", "Write", "NotebookEdit", "WebFetch", "WebSearch", "TodoWrite"),
    *("BashOutput", "KillShell", "Skill", "SlashCommand", "AskUserQuestion", "EnterPlanMode", "ExitPlanMode"),
    *("TaskCreate", "TaskGet", "TaskList", "TaskUpdate", "EnterWorktree", "ToolSearch"),
)


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def tool(name: str) -> dict[str, Any]:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string", "description": "What to do"}, "timeout": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"Does what {name} does.", "input_schema": schema}


def request(session: str = "a", **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [
            {
                "role": "user",
                "content": [
                    text("<system-reminder>Today is a day.</system-reminder>"),
                    text("Say in one word what notes.txt is about.", **CACHED),
                ],
            },
            {"role": "system", "content": "Be exact."},
        ],
        "system": [
            text(f"x-anthropic-billing-header: cc_version=2.1.197.{session}; cc_entrypoint=cli; cch={session};"),
            text("You are an agent.", **CACHED),
            text("You edit files.\nYou run commands.", **CACHED),
        ],
        "tools": [tool(name) for name in NAMES],
        "metadata": {"user_id": f"user_1_account__session_{session}"},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
        **fields,
    }


def second(session: str = "a") -> dict[str, Any]:
    """After a tool call that has failed."""
    first = request(session)
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "cat notes.txt"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such file", "is_error": True, **CACHED}
    thought = {"type": "thinking", "thinking": "I look.", "signature": ""}
    return {
        **first,
        "messages": [
            *first["messages"],
            {"role": "assistant", "content": [thought, text("I look."), call]},
            {"role": "user", "content": [result]},
        ],
    }


def bench() -> Bench:
    # Less than max_tokens, as with most models of one's own.
    return Bench(engine_info(max_model_len=20_000))


@pytest.mark.parametrize("body", [request(), second()], ids=["first", "second"])
def test_a_turn(body: dict[str, Any]) -> None:
    server = bench()
    answered = asked(
        server, "/v1/messages?beta=true", body, lambda: server.engine.deliver(0, "trees", "stop", stop_token_id=EOS)
    )
    assert answered.status == 200
    events = events_of(answered)
    assert events[0]["type"] == "message_start"
    assert events[-2]["delta"]["stop_reason"] == "end_turn"
    assert events[-2]["context_management"] == {"applied_edits": []}
    # What changes nothing is named, and nothing else.
    assert set(answered.headers["openai-bls-ignored"].split(", ")) == {
        "metadata",
        "output_config.effort",
        "system[].cache_control",
        "messages[].content[].cache_control",
    }
    (prompt,) = server.prompts.requests
    assert prompt.messages is not None
    assert [message["role"] for message in prompt.messages[:3]] == ["system", "user", "system"]
    assert len(prompt.tools or ()) == len(NAMES)


def test_sessions_share_the_beginning_of_their_prompt() -> None:
    prompts = []
    for session in ("a", "b"):
        server = bench()
        asked(server, "/v1/messages", request(session), lambda: server.engine.deliver(0, "x", "length"))  # noqa: B023
        prompts.append(server.prompts.requests[0])
    assert prompts[0] == prompts[1]
    assert prompts[0].messages is not None
    assert prompts[0].messages[0]["content"] == "You are an agent.\nYou edit files.\nYou run commands."


def test_tokens_are_counted_by_the_same_body() -> None:
    fields = ("max_tokens", "metadata", "stream")
    body = {name: value for name, value in second().items() if name not in fields}
    answered = asked(bench(), "/v1/messages/count_tokens?beta=true", body)
    assert answered.status == 200
    tokens = answered.json()["input_tokens"]
    assert answered.json()["context_management"] == {"original_input_tokens": tokens}
