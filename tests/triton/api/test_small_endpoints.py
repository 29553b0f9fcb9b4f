"""Tokenize, detokenize, embeddings and metrics, on /v1 and on Triton's own endpoints."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch

from openai_bls.commands.main import main
from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import CHATS, TOOL_CHATS, Golden
from tests.triton.metrics import find, scrape
from tests.triton.reference import Reference
from tests.triton.triton_client import TritonError, generate, grpc_chat, infer_input
from tests.waiting import until

pytestmark = pytest.mark.triton

TEXTS = ["What is machine learning?", "你好，请问你叫什么？🤷🏼‍♀️", " x"]


def post(server: RunningServer, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = httpx.post(server.openai_url.removesuffix("/v1") + path, json=body, timeout=60)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


def embedded(reference: Reference, ids: list[int], *, mean: bool = False) -> Any:
    """transformers' own last hidden state of the last token, or the mean of all, of length 1."""
    with torch.inference_mode():
        states = reference.model.model(torch.tensor([ids])).last_hidden_state[0]
    return pytest.approx(torch.nn.functional.normalize(states.mean(dim=0) if mean else states[-1], dim=0), abs=1e-3)


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_and_detokenize(server: RunningServer, reference: Reference, prefix: str) -> None:
    for text in TEXTS:
        answer = post(server, f"{prefix}/tokenize", {"model": "openai_bls", "prompt": text, "return_token_strs": True})
        assert answer["tokens"] == reference.tokenizer(text)["input_ids"]
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert post(server, f"{prefix}/detokenize", {"tokens": answer["tokens"]}) == {"prompt": text}


@pytest.mark.parametrize("golden", [CHATS[0], CHATS[-1], TOOL_CHATS[0]])
def test_a_chats_tokens_are_those_of_its_completion(
    server: RunningServer, client: openai.OpenAI, reference: Reference, golden: Golden
) -> None:
    tools = {} if golden.tools is None else {"tools": golden.tools}
    body: dict[str, Any] = {"model": "openai_bls", "messages": golden.messages, **tools}
    answer = post(server, "/tokenize", body)
    assert answer["tokens"] == reference.prompt_token_ids(golden)
    completion = client.chat.completions.create(**body, max_tokens=1)
    assert completion.usage is not None
    assert answer["count"] == completion.usage.prompt_tokens


def test_embeddings(client: openai.OpenAI, reference: Reference) -> None:
    """As numbers, as base64, and as the SDK asks for them when nothing is said: base64 that it decodes."""
    rows = [reference.tokenizer(text)["input_ids"] for text in TEXTS]
    expected = [embedded(reference, ids) for ids in rows]
    encodings: Any = ("float", "base64")
    for encoding in encodings:
        answer = client.embeddings.create(model="openai_bls", input=TEXTS, encoding_format=encoding)
        assert [item.index for item in answer.data] == [0, 1, 2]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, rows))
        vectors: list[Any] = [item.embedding for item in answer.data]
        if encoding == "base64":
            vectors = [np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4") for text in vectors]
        assert [list(vector) for vector in vectors] == expected
    ids = rows[1]
    pooled = client.embeddings.create(model="openai_bls", input=[ids, ids[:3]], extra_body={"pooling": "mean"})
    assert [item.embedding for item in pooled.data] == [embedded(reference, row, mean=True) for row in (ids, ids[:3])]
    size = len(pooled.data[0].embedding)
    assert client.embeddings.create(model="openai_bls", input="x", dimensions=size).data[0].embedding


def test_metrics(server: RunningServer, client: openai.OpenAI) -> None:
    messages: Any = CHATS[0].messages
    before = scrape(server)
    answer = client.chat.completions.create(model="openai_bls", messages=messages, max_tokens=5, temperature=0)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="openai_bls", messages=messages, max_tokens=0)
    after = scrape(server)
    assert answer.usage is not None

    def grown(name: str, **labels: str) -> float:
        earlier, later = (find(page, name, endpoint="chat.completions", **labels) for page in (before, after))
        return later - earlier

    assert grown("requests_total", outcome="done") == grown("requests_total", outcome="400") == 1
    assert grown("prompt_tokens_total") == answer.usage.prompt_tokens
    assert grown("generation_tokens_total") == answer.usage.completion_tokens
    for name in ("time_to_first_token", "e2e_request_latency", "time_per_output_token"):
        assert grown(f"{name}_seconds_count") == 1
    assert find(after, "requests_in_progress") == 0
    assert 0 <= find(after, "engine_kv_cache_usage_ratio") <= 1
    # The engine reports its steps a while after they were made.
    until(lambda: find(scrape(server), "engine_steps_total"))


def test_tritons_endpoints(server: RunningServer, reference: Reference) -> None:
    text = TEXTS[1]
    ids = reference.tokenizer(text)["input_ids"]

    def by_http(fields: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(generate(server.http_url, "openai_bls", fields)["response"])
        return answer

    def by_grpc(fields: dict[str, Any]) -> dict[str, Any]:
        names = ("endpoint", "prompt", "tokens", "input")
        inputs = [infer_input(name, [fields[name]], "BYTES") for name in names if name in fields]
        (answer,) = grpc_chat(server.grpc_url, inputs, {k: v for k, v in fields.items() if k not in names})
        return answer

    for ask in (by_http, by_grpc):
        tokenized = ask({"endpoint": "tokenize", "prompt": text, "return_token_strs": True})
        assert tokenized["tokens"] == ids
        assert len(tokenized["token_strs"]) == len(ids)
        assert ask({"endpoint": "detokenize", "tokens": json.dumps(ids)}) == {"prompt": text}
        vector = ask({"endpoint": "embeddings", "input": json.dumps([text]), "model": "openai_bls"})
        assert vector["data"][0]["embedding"] == embedded(reference, ids)
        with pytest.raises(TritonError) as caught:
            ask({"tokens": json.dumps(ids)})
        assert "'endpoint'" in caught.value.body["error"]["message"]


def test_reload_of_a_server_without_model_control(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reload", "--grpc-port", str(server.ports.grpc), "tensorrt_llm"]) == 2
    assert "the server takes no model control: start it with " in capsys.readouterr().err
    assert main(["reload", "--grpc-port", "1", "tensorrt_llm"]) == 2
    assert "no server answers on 127.0.0.1:1 (" in capsys.readouterr().err
