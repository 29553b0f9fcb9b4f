"""Prompts that leave no room for an answer: each API's own sentence with its numbers, which clients act by."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.api.http_support import asked
from tests.unit.core_support import Bench, engine_info

# As Codex, OpenCode and Claude Code read them.
OPENAI = re.compile(r"This model's maximum context length is (\d+) tokens, and the prompt has (\d+),")
TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
NO_ROOM = re.compile(r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)")

APIS = {
    "/v1/chat/completions": ("messages", "max_tokens"),
    "/v1/completions": ("prompt", "max_tokens"),
    "/v1/responses": ("input", "max_output_tokens"),
    "/v1/messages": ("messages", "max_tokens"),
}


def body_of(path: str, text: str, max_tokens: int) -> dict[str, Any]:
    prompt, most = APIS[path]
    value: Any = [{"role": "user", "content": text}] if prompt == "messages" else text
    return {"model": "tiny", prompt: value, most: max_tokens}


@given(st.sampled_from(sorted(APIS)), st.integers(1, 40), st.integers(1, 60), st.integers(16, 99), st.booleans())
def test_a_prompt_that_leaves_no_room(path: str, limit: int, length: int, max_tokens: int, stream: bool) -> None:
    bench = Bench(engine_info(max_model_len=limit))

    def feed() -> None:
        if bench.engine.requests:
            bench.engine.deliver(0, "x", "length")

    answer = asked(bench, path, {**body_of(path, "x" * length, max_tokens), "stream": stream}, feed)
    assert answer.status == (200 if length < limit else 400)
    assert len(bench.engine.requests) == (length < limit)
    if length < limit:
        return
    error = answer.json()["error"]
    if path != "/v1/messages":
        assert (error["code"], error["param"]) == ("context_length_exceeded", APIS[path][0])
        assert numbers(OPENAI, error["message"]) == (limit, length)
    elif length > limit:
        assert numbers(TOO_LONG, error["message"]) == (length, limit)
    else:
        assert numbers(NO_ROOM, error["message"]) == (length, max_tokens, limit)


def numbers(pattern: re.Pattern[str], message: str) -> tuple[int, ...]:
    found = pattern.match(message)
    assert found is not None, message
    return tuple(map(int, found.groups()))
