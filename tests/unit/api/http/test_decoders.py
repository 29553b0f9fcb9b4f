"""Streams with silences, read by other people's decoders: none takes a keep-alive for an event, none gives up.

The interval is short here. With `OPENAI_BLS_TESTS_SILENCE_S=60` each silence lasts as long, at the default interval.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools import compiled, tool
from tests.unit.api.http_support import served
from tests.unit.core_support import EOS, Bench

ROOT = Path(__file__).parents[4]
FOLDER = Path(__file__).parent / "decoders"
CLIENTS = ROOT / ".venv-clients"
LONG_S = float(os.environ.get("OPENAI_BLS_TESTS_SILENCE_S", "0"))
SILENCE_S = LONG_S or 0.4
SETTINGS: dict[str, Any] = {} if LONG_S else {"keep_alive_interval_s": 0.1}
# Where other tests run too, a virtual machine takes seconds to start.
WAIT_S = 100.0

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [USER], "stream": True},
    RESPONSES: {"model": "tiny", "input": "hi", "stream": True},
    MESSAGES: {"model": "tiny", "messages": [USER], "max_tokens": 50, "stream": True},
}


def go() -> list[str]:
    folder = compiled(FOLDER / "decoder.go", tool("go"), "build", to=("-o", "{}/decoder"), patience_s=WAIT_S)
    return [str(folder / "decoder")]


def rust() -> list[str]:
    options = tool("rustc"), "--edition=2021"
    folder = compiled(FOLDER / "decoder.rs", *options, to=("-o", "{}/decoder"), patience_s=WAIT_S)
    return [str(folder / "decoder")]


def java() -> list[str]:
    folder = compiled(FOLDER / "Decoder.java", tool("javac"), to=("-d", "{}"), patience_s=WAIT_S)
    return [tool("java"), "-cp", str(folder), "Decoder"]


def javascript() -> list[str]:
    return [tool("node"), str(FOLDER / "sdk.mjs")]


def python() -> list[str]:
    return [sys.executable, str(FOLDER / "sdk.py")]


def python_of_clients() -> list[str]:
    return [str(CLIENTS / "bin" / "python"), str(FOLDER / "sdk.py")]


SDKS = (javascript, python, python_of_clients)
"""Programs that read several streams in one process, whose start costs more than all streams."""


def missing(program: Callable[[], list[str]]) -> Path | None:
    """What the program needs and `make test` would have brought."""
    needed: dict[Any, Path] = {
        javascript: CLIENTS / "node_modules" / "openai",
        python_of_clients: CLIENTS / "bin" / "python",
    }
    path = needed.get(program)
    return None if path is None or path.exists() else path


@pytest.mark.parametrize(
    ("program", "paths"),
    [
        (go, (CHAT, RESPONSES, MESSAGES)),
        (rust, (CHAT, RESPONSES, MESSAGES)),
        (java, (CHAT, RESPONSES, MESSAGES)),
        (javascript, (CHAT, RESPONSES, MESSAGES)),
        (python, (CHAT, RESPONSES)),
        (python_of_clients, (CHAT, RESPONSES, MESSAGES)),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
@pytest.mark.timeout(WAIT_S + 3 * LONG_S)
def test_silences(program: Callable[[], list[str]], paths: tuple[str, ...]) -> None:
    lacking = missing(program)
    if lacking is not None:
        if os.environ.get("OPENAI_BLS_TESTS_NEED_TOOLS"):
            pytest.fail(f"{lacking} is missing")
        pytest.skip(f"{lacking} is missing: `make test` makes it")
    printed = asyncio.run(_streamed(program(), paths, together=program in SDKS))
    for path in paths:
        # None is empty, or no JSON.
        events = [json.loads(event) for event in printed[path] if event != "[DONE]"]
        CHECKS[path](events)


async def _streamed(command: list[str], paths: tuple[str, ...], *, together: bool) -> dict[str, list[str]]:
    """What the program prints of a stream of each of the paths, with a silence before each of its two pieces.

    One process reads all of them together and numbers its lines, or each reads one.
    """
    bench = Bench(**SETTINGS)
    environment = {**os.environ, "NODE_MODULES": str(CLIENTS / "node_modules")}
    async with asyncio.timeout(WAIT_S + 3 * LONG_S), served(bench) as port:
        words = [[f"http://127.0.0.1:{port}{path}", json.dumps(BODIES[path])] for path in paths]
        running = [
            await asyncio.create_subprocess_exec(*command, *given, stdout=subprocess.PIPE, env=environment)
            for given in ([[*itertools.chain(*words)]] if together else words)
        ]
        outputs = asyncio.gather(*(process.communicate() for process in running))
        while len(bench.engine.requests) < len(paths) and not outputs.done():
            await asyncio.sleep(0.01)
        for piece in ("he", "llo"):
            await asyncio.sleep(SILENCE_S)
            for at in range(len(paths)):
                bench.engine.deliver(at, piece, stop_token_id=None)
        for at in range(len(paths)):
            bench.engine.deliver(at, "", "stop", stop_token_id=EOS)
        printed = [output.decode().splitlines() for output, _ in await outputs]
    assert {process.returncode for process in running} == {0}
    if together:
        numbered = [line.split(" ", 1) for line in printed[0]]
        printed = [[event for number, event in numbered if number == str(at)] for at in range(len(paths))]
    return dict(zip(paths, printed, strict=True))


def _check_chat(events: list[dict[str, Any]]) -> None:
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "hello"


def _check_responses(events: list[dict[str, Any]]) -> None:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "hello"
    assert events[-1]["type"] == "response.completed"


def _check_messages(events: list[dict[str, Any]]) -> None:
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [delta["text"] for delta in deltas] == ["he", "llo"]
    # The SDKs keep pings to themselves.
    assert kinds.count("ping") == 0 or "ping" in kinds[: kinds.index("content_block_start")]
    assert set(kinds) - {"ping"} == {
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    }  # fmt: skip


CHECKS = {CHAT: _check_chat, RESPONSES: _check_responses, MESSAGES: _check_messages}
