"""Unmodified clients of other people against /v1: each script of clients/ runs in .venv-clients, where they are."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import ANSWERED, ROOT
from tests.triton.reference import Reference

pytestmark = pytest.mark.triton

FOLDER = Path(__file__).parent / "clients"
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
NAMES = ("openai", "langchain", "litellm", "instructor", "pydantic_ai", "llm", "anthropic")
ANSWER = ANSWERED.answer
FRANCE = {"country": "France", "capital": "Paris"}
AFTER_TOOL = "It is 21°C and sunny in Paris."

Find = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def found(server: RunningServer) -> Iterator[Find]:
    """What a client's script found; they run two at a time, since most of their time goes into imports."""

    def run(name: str) -> dict[str, Any]:
        script = FOLDER / f"{name}_client.py"
        # Anthropic's SDK adds /v1 itself.
        url = server.openai_url.removesuffix("/v1") if name == "anthropic" else server.openai_url
        done = subprocess.run([PYTHON, script, url], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    assert PYTHON.exists(), f"{PYTHON} is missing: `make test` makes it"
    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(run, name) for name in NAMES}
        yield lambda name: runs[name].result()


def test_openai_2(found: Find) -> None:
    """The SDK that most programs have; .venv has the next one."""
    result = found("openai")
    assert result["version"].startswith("2.")
    assert {"demo", "openai_bls"} <= set(result["models"])
    for way in ("whole", "streamed", "helper_deltas", "helper_final"):
        assert result[way] == ANSWER
    assert result["asynchronous"] == [ANSWER, ANSWER]
    assert result["parsed"] == FRANCE
    assert result["tool"] == {"name": "get_weather", "arguments": {"city": "Paris"}}
    assert result["after_tool"] == AFTER_TOOL
    assert result["completion"] == " Berlin. It li"
    assert result["error"] == {"param": "temperature", "type": "invalid_request_error", "status": 400}


def test_langchain(found: Find, reference: Reference) -> None:
    result = found("langchain")
    assert result["whole"] == result["streamed"] == ANSWER
    assert result["batch"] == [ANSWER, "2 + 2 = 4"]
    assert result["usage"]["input_tokens"] == len(reference.prompt_token_ids(ANSWERED))
    assert result["usage"]["output_tokens"] == ANSWERED.tokens
    for method in ("json_schema", "function_calling", "json_mode"):
        assert result[method] == FRANCE
    assert result["forced"] == result["streamed_call"] == [{"name": "get_weather", "args": {"city": "Paris"}}]
    assert [turn["type"] for turn in result["agent"]] == ["human", "ai", "tool", "ai"]
    assert result["agent"][-1]["text"] == AFTER_TOOL
    # The end token has none.
    assert result["logprobs"] == ANSWERED.tokens - 1


def test_litellm(found: Find, reference: Reference) -> None:
    result = found("litellm")
    for way in ("whole", "streamed", "rebuilt", "asynchronous"):
        assert result[way] == ANSWER
    assert result["completion_tokens"] == ANSWERED.tokens
    assert result["finish_reason"] == "stop"
    for way in ("tool_auto", "tool_required", "tool_streamed"):
        assert result[way] == [["get_weather", '{"city": "Paris"}']]
    assert result["typed"] == FRANCE
    assert result["completion"] == " Berlin. It li"
    assert "temperature" in result["error"]


def test_instructor(found: Find) -> None:
    result = found("instructor")
    assert set(result) == {"tool_call", "tools_strict", "json_schema_mode"}
    for mode in result.values():
        assert mode == {"typed": FRANCE, "partial": FRANCE}


def test_pydantic_ai(found: Find) -> None:
    result = found("pydantic_ai")
    assert result["whole"] == result["streamed"] == ANSWER
    assert result["agent"] == AFTER_TOOL
    assert result["by_tool"] == result["by_schema"] == FRANCE


def test_llm(found: Find) -> None:
    result = found("llm")
    assert result["streamed"] == ANSWER
    assert result["tool"] == AFTER_TOOL
    assert json.loads(result["schema"]) == FRANCE


def test_anthropic(found: Find, reference: Reference) -> None:
    """The other API that the same server speaks."""
    result = found("anthropic")
    created, streamed = result["create"], result["stream"]
    assert created["text"] == streamed["text"] == streamed["joined"] == ANSWER
    assert streamed["pieces"] > 1
    assert created["stop_reason"] == streamed["stop_reason"] == "end_turn"
    assert created["output_tokens"] == streamed["output_tokens"] == ANSWERED.tokens
    assert created["input_tokens"] == result["count_tokens"] == len(reference.prompt_token_ids(ANSWERED))
    assert created["role"] == "assistant"
    assert created["id"].startswith("msg_")
    assert created["request_id"]
    assert result["raw_events"] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert result["several"] == [ANSWER] * 4
    assert result["stop_sequence"] == {
        "text": ANSWER[: ANSWER.index(" instead")],
        "stop_reason": "stop_sequence",
        "stop_sequence": " instead",
    }
    for way in ("tools", "tools_streamed"):
        assert result[way] == {
            "stop_reason": "tool_use",
            "calls": [{"name": "get_weather", "input": {"city": "Paris"}}],
            "answer": AFTER_TOOL,
            "answer_stop_reason": "end_turn",
        }
    assert result["forced"] == [["get_weather", ["city"], "tool_use"]] * 2
    assert "Machine learning is" + result["prefilled"] == ANSWER
    assert result["lengths"] == [["max_tokens", 4], ["max_tokens", 0]]
    assert result["structured"]["topic"] in ("computers", "cooking")
    not_found = {"class": "NotFoundError", "status": 404, "type": "not_found_error", "request_id": True}
    bad = {"class": "BadRequestError", "status": 400, "type": "invalid_request_error", "request_id": True}
    too_long = re.fullmatch(
        r"prompt is too long: (\d+) tokens > (\d+) maximum", result["errors"]["too_long"].pop("message")
    )
    assert too_long is not None
    assert int(too_long[1]) > 20_000
    assert {"demo", "openai_bls"} <= set(result["models"])
    edited = result["edited"]
    (applied,) = edited["whole"]["applied_edits"]
    assert edited["streamed"] == edited["whole"]
    assert (applied["type"], applied["cleared_tool_uses"]) == ("clear_tool_uses_20250919", 1)
    assert edited["original"] - edited["tokens"] == applied["cleared_input_tokens"] > 0
    assert result["errors"] == {
        "unknown_model": not_found, "unknown_model_streamed": not_found, "image": bad, "too_long": bad,
    }  # fmt: skip
