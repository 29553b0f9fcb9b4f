"""Bad input gets an OpenAI error body with the right status on every path, and harms nobody."""

from __future__ import annotations

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton import triton_client
from tests.triton.conftest import ROOT
from tests.triton.conversations import HELLO
from tests.triton.triton_client import TritonError

pytestmark = pytest.mark.triton


# The demo takes text only.
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}

# Body → the field at fault: one of each part of the pipeline that refuses; every rule has a unit test.
BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].image_url"),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
    ({"messages": HELLO, "max_tokens": "many"}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": -1}, "max_tokens"),
    ({"messages": HELLO, "temperature": -1}, "temperature"),
    ({"messages": HELLO, "n": 100_000}, "n"),
    ({"messages": HELLO, "stop": [""]}, "stop[0]"),
    ({"messages": HELLO, "top_logprobs": 5}, "top_logprobs"),
    ({"messages": HELLO, "logit_bias": {"1000000": 1}}, "logit_bias"),
    ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
    ({"messages": HELLO, "structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"messages": HELLO, "guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
    ({"messages": HELLO, "guided_grammar": "root ::= a"}, "guided_grammar"),
    ({"messages": HELLO, "tool_choice": "required", "tools": []}, "tool_choice"),
    ({"messages": HELLO, "functions": [{"name": "f"}]}, "functions"),
    ({"messages": HELLO, "frobnicate": 1}, "frobnicate"),
    ({"messages": HELLO, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"prompt": [10_000_000]}, "prompt"),
    ({"prompt": "x", "best_of": 1, "n": 2}, "best_of"),
    ({"prompt": "x", "logprobs": 21}, "logprobs"),
]


def check_error(body: Any, param: str | None) -> None:
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "Traceback" not in error["message"]
    assert "/model_repository/" not in error["message"]


@pytest.mark.parametrize(("body", "param"), BAD_BODIES, ids=lambda value: json.dumps(value)[:60])
def test_bodies(server: RunningServer, body: dict[str, Any], param: str) -> None:
    """The same error body on /v1, streamed or not, and as the error text of Triton's front ends."""
    url = f"{server.openai_url}/{'completions' if 'prompt' in body else 'chat/completions'}"
    response = httpx.post(url, json=body, timeout=60)
    assert response.status_code == 400
    expected = response.json()
    check_error(expected, param)
    streamed = httpx.post(url, json={**body, "stream": True}, timeout=60)
    assert (streamed.status_code, streamed.json()) == (400, expected)
    text = json.dumps(body)
    for ask in (triton_client.chat, triton_client.chat_stream):
        with pytest.raises(TritonError) as caught:
            ask(server.http_url, {"request": text})
        assert (caught.value.status, caught.value.body) == (400, expected)
    with pytest.raises(TritonError) as caught:
        triton_client.grpc_chat(server.grpc_url, [triton_client.infer_input("request", [text], "BYTES")], {})
    assert caught.value.body == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"request": "{"}, "request"),
        ({"request": json.dumps({"messages": HELLO, "n": 1}), "n": 2}, "n"),
        ({"messages": json.dumps(HELLO), "endpoint": "telepathy"}, "endpoint"),
        ({"messages": json.dumps(HELLO), "frobnicate": 1}, "frobnicate"),
        ({"messages": json.dumps(HELLO), "model": "gpt-4o"}, "model"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_the_contract_on_triton(server: RunningServer, body: dict[str, Any], param: str | None) -> None:
    with pytest.raises(TritonError) as caught:
        triton_client.generate(server.http_url, "openai_bls", body)
    assert caught.value.status == 400
    check_error(caught.value.body, param)


def test_stream_on_generate(server: RunningServer) -> None:
    """Triton itself says what to use instead; a model cannot tell the two endpoints apart."""
    body = {"messages": json.dumps(HELLO), "stream": True, "max_tokens": 3}
    with pytest.raises(TritonError, match="generate stream"):
        triton_client.generate(server.http_url, "openai_bls", body)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("openai_bls", {"messages": HELLO}),
        ("ensemble", {"text_input": "x", "max_tokens": "5"}),
        ("tensorrt_llm_bls", {"text_input": "x", "max_tokens": 5, "stream": "true"}),
    ],
)
def test_a_value_of_the_wrong_type_is_in_the_guide(server: RunningServer, model: str, body: dict[str, Any]) -> None:
    """By the words of Triton's front end, which no model of ours can change."""
    with pytest.raises(TritonError) as caught:
        triton_client.generate(server.http_url, model, body)
    assert caught.value.status == 500
    words = set(re.findall(r"attempt to access JSON non-\S+ as \S+\b", caught.value.error))
    assert words
    guide = (ROOT / "docs" / "guides" / "triton.md").read_text(encoding="utf-8")
    assert words <= set(re.findall(r"`([^`\n]+)`", guide))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_input": "", "max_tokens": 5}, "QUERY"),
        ({"text_input": "x", "max_tokens": 0}, None),
        ({"text_input": "x", "max_tokens": 5, "repetition_penalty": 0.0}, "repetition_penalty"),
        ({"text_input": "x", "max_tokens": 5, "temperature": -1.0}, "temperature"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_ensemble(server: RunningServer, body: dict[str, Any], param: str | None) -> None:
    with pytest.raises(TritonError) as caught:
        triton_client.generate(server.http_url, "ensemble", body)
    assert caught.value.status == 400
    assert "Traceback" not in caught.value.error
    if param is not None:
        assert param in caught.value.error


def test_prompts_that_are_far_too_long(server: RunningServer) -> None:
    """They cost preprocessing neither time nor memory, however many come at once."""
    text = "ab " * 1_300_000
    bodies = [
        ("completions", {"prompt": text}),
        ("chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ]
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(httpx.post, f"{server.openai_url}/{path}", json=body, timeout=60) for path, body in bodies * 2
        ]
        responses = [call.result() for call in calls]
    assert [response.status_code for response in responses] == [400] * 4
    assert {response.json()["error"]["code"] for response in responses} == {"context_length_exceeded"}
    tokenize = httpx.post(f"{server.openai_url}/tokenize", json={"prompt": text}, timeout=60)
    assert (tokenize.status_code, tokenize.json()["error"]["code"]) == (400, "string_above_max_length")
    with pytest.raises(TritonError, match="context length"):
        triton_client.generate(server.http_url, "ensemble", {"text_input": text, "max_tokens": 5})
    (pid,) = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if "/preprocessing/1/model.py\0" in _text(path) and f"\0{server.pid}\0" in _text(path)
    ]
    peak = re.search(r"VmHWM:\s+(\d+) kB", _text(Path(f"/proc/{pid}/status")))
    assert peak is not None
    assert int(peak[1]) < 300_000


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        # It has ended meanwhile.
        return ""


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("openai_bls", b'{"prompt": "x", "\x80": 1}'),
        ("tensorrt_llm_bls", b'{"text_input": "x", "max_tokens": 2, "\x80": 1}'),
        ("tensorrt_llm", b'{"input_ids": [1], "request_output_len": 2, "\x80": 1}'),
        ("preprocessing", b'{"QUERY": "x", "\x80": 1}'),
    ],
)
def test_a_parameter_that_is_not_utf_8(server: RunningServer, model: str, body: bytes) -> None:
    """Triton passes it on; the model's log has nothing of it, as the last test of this file sees."""
    response = httpx.post(f"{server.http_url}/v2/models/{model}/generate", content=body, timeout=60)
    assert response.status_code == 400
    assert "not valid UTF-8" in response.text
    assert ".py" not in response.text


@pytest.mark.parametrize("model", ["openai_bls", "ensemble"])
def test_a_request_too_large_for_tritons_endpoints(server: RunningServer, model: str) -> None:
    field = "prompt" if model == "openai_bls" else "text_input"
    with pytest.raises(TritonError, match=" 33554432 bytes"):
        triton_client.generate(server.http_url, model, {field: "x" * (33 * 1024 * 1024), "max_tokens": 5})


def test_half_a_request(server: RunningServer) -> None:
    """A client that stops in the middle of its request, and one that sends garbage."""
    host, port = server.openai_url.removeprefix("http://").removesuffix("/v1").split(":")
    for data in (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"\x00\x01garbage\r\n\r\n",
    ):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(data)


def test_the_server_is_unharmed(server: RunningServer) -> None:
    """After all of the above (tests run in the order of the file) everything still answers."""
    assert httpx.get(f"{server.http_url}/v2/health/ready").status_code == 200
    body = {"messages": HELLO, "max_tokens": 5}
    assert httpx.post(f"{server.openai_url}/chat/completions", json=body, timeout=60).status_code == 200
    triton_client.chat(server.http_url, {"messages": json.dumps(HELLO), "max_tokens": 5})
    triton_client.generate(server.http_url, "ensemble", {"text_input": "Hello", "max_tokens": 5})
    log = server.log_path.read_text(errors="replace")
    assert "Traceback" not in log
