"""The class of each field that clients of other servers send, by API: honoured, neutral, without effect or refused."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import pytest

from openai_bls.api.chat.validation import parse_json
from openai_bls.api.responses.parsing import parse_create
from openai_bls.api.responses.store import References, ResponseStore
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest
from tests.unit.api.messages import messages_support

Class = Literal["honoured", "neutral", "without effect", "refused"]
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> ValidRequest:
    return parse_json("chat.completions", json.dumps({"messages": [USER], "tools": [TOOL], **fields}).encode())


def completion(**fields: Any) -> ValidRequest:
    return parse_json("completions", json.dumps({"prompt": "hi", **fields}).encode())


def responses(**fields: Any) -> ValidRequest:
    references = References(ResponseStore(), 10**6)
    return parse_create(json.dumps({"input": "hi", **fields}).encode(), references).chat


def messages(**fields: Any) -> ValidRequest:
    return messages_support.converted(**fields).valid


APIS = {"chat": chat, "completion": completion, "responses": responses, "messages": messages}

CHAT: dict[str, list[tuple[Any, Class]]] = {
    "cache_salt": [("s", "without effect"), (None, "neutral")],
    "request_id": [("r", "without effect")],
    "rid": [("r", "without effect"), (["r"], "without effect")],
    "client_metadata": [({"a": "b"}, "without effect")],
    "provider": [({"order": ["x"]}, "without effect")],
    "usage": [({"include": True}, "without effect")],
    "cache_prompt": [(True, "without effect"), (False, "neutral")],
    "keep_alive": [("5m", "without effect"), (0, "without effect")],
    "speed": [("fast", "without effect")],
    "verbosity": [("low", "without effect"), ("high", "without effect")],
    "return_token_ids": [(False, "neutral"), (True, "refused")],
    "return_tokens_as_token_ids": [(False, "neutral"), (True, "refused")],
    "spaces_between_special_tokens": [(True, "neutral"), (False, "refused")],
    "prompt_logprobs": [(None, "neutral"), (1, "refused")],
    "allowed_token_ids": [(None, "neutral"), ([1], "honoured")],
    "kv_transfer_params": [(None, "neutral"), ({"a": 1}, "honoured")],
    "mm_processor_kwargs": [({}, "neutral"), ({"a": 1}, "refused")],
    "vllm_xargs": [({}, "neutral"), ({"a": 1}, "refused")],
    "repetition_detection": [(None, "neutral"), ({"a": 1}, "refused")],
    "lora_path": [(None, "neutral"), ("a", "refused")],
    "session_params": [({}, "neutral"), ({"id": "a"}, "refused")],
    "typical_p": [(1, "neutral"), (1.0, "neutral"), (0.5, "refused")],
    "options": [({}, "neutral"), ({"num_ctx": 8}, "refused")],
    "nvext": [({}, "neutral"), ({"top_k": 1}, "refused")],
    "echo": [(False, "neutral"), (True, "refused")],
    "best_of": [(1, "neutral"), (2, "refused")],
    "regex": [("a+", "honoured")],
    "ebnf": [('root ::= "a"', "honoured")],
    "n_predict": [(5, "honoured"), (-1, "neutral")],
    "thinking_token_budget": [(0, "honoured"), (100, "honoured")],
    "reasoning": [({"effort": "low"}, "honoured")],
    "thinking": [({"type": "disabled"}, "honoured")],
    "enable_thinking": [(False, "honoured")],
    "think": [(False, "honoured")],
    "reasoning_effort": [("xhigh", "honoured")],
    "top_p": [(0, "honoured")],
    "max_tool_calls": [(3, "refused")],
}
COMPLETION: dict[str, list[tuple[Any, Class]]] = {
    name: CHAT[name] for name in ("cache_salt", "rid", "typical_p", "options", "return_token_ids", "regex", "top_p")
}
RESPONSES: dict[str, list[tuple[Any, Class]]] = {
    "client_metadata": [({"a": "b"}, "without effect")],
    "max_tool_calls": [(3, "without effect")],
    "truncation": [("auto", "neutral"), ("disabled", "neutral"), ("x", "refused")],
    "text": [({"verbosity": "low"}, "without effect")],
    "reasoning": [
        ({"summary": "auto"}, "neutral"),
        ({"context": "all_turns"}, "neutral"),
        ({"effort": "high"}, "honoured"),
    ],
    "include": [
        (["file_search_call.results"], "neutral"),
        (["web_search_call.action.sources"], "neutral"),
        (["message.input_image.image_url"], "neutral"),
        (["x"], "refused"),
    ],
    "prompt_cache_key": [("k", "without effect")],
    "user": [("u", "without effect")],
}
MESSAGES: dict[str, list[tuple[Any, Class]]] = {
    "speed": [("fast", "without effect"), ("standard", "without effect")],
    "metadata": [({"user_id": "u"}, "without effect")],
    "cache_control": [({"type": "ephemeral"}, "without effect")],
    "output_config": [({"effort": "low"}, "honoured")],
    "mcp_servers": [([], "neutral"), ([{"name": "x"}], "refused")],
}
CASES = [
    pytest.param(api, name, value, verdict, id=f"{api}-{name}-{json.dumps(value)[:30]}")
    for api, table in (("chat", CHAT), ("completion", COMPLETION), ("responses", RESPONSES), ("messages", MESSAGES))
    for name, cases in table.items()
    for value, verdict in cases
]


@pytest.mark.parametrize(("api", "name", "value", "verdict"), CASES)
def test_class_of_a_field(api: str, name: str, value: Any, verdict: Class) -> None:
    parse = APIS[api]
    if verdict == "refused":
        with pytest.raises(InvalidRequestError) as caught:
            parse(**{name: value})
        assert caught.value.param is not None
        assert caught.value.param.split("[")[0].split(".")[0] == name
        return
    plain, found = parse(), parse(**{name: value})
    same = msgspec.structs.replace(found, ignored=()) == plain
    assert same is (verdict != "honoured")
    noted = [path for path in found.ignored if path.split(".")[0].split("[")[0] == name]
    assert bool(noted) is (verdict == "without effect")


MESSAGE_FIELDS: dict[str, Any] = {
    "id": "m_1", "timestamp": 1, "tool_calls": None, "cache_control": {"type": "ephemeral"}, "uuid": "u",
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGE_FIELDS)
@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_fields_that_clients_keep_in_messages(role: str, name: str) -> None:
    message = {"role": role, "content": "x", name: MESSAGE_FIELDS[name]}
    found = chat(messages=[USER, message])
    assert found.ignored == (() if MESSAGE_FIELDS[name] is None else (f"messages[].{name}",))
