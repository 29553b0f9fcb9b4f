"""Tokenize, detokenize, embeddings and metrics, on /v1 and on Triton's own endpoints."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton.conftest import CHATS, CHECKPOINT, TOOL_CHATS, Golden, Reference
from tests.triton.triton_client import TritonError, generate, grpc_chat, infer_input

pytestmark = pytest.mark.triton

TEXTS = ["What is machine learning?", "你好，请问你叫什么？🤷🏼‍♀️", " x"]
TIMEOUT = 60.0


def root(server: RunningServer) -> str:
    return server.openai_url.removesuffix("/v1")


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(url, json=body, timeout=TIMEOUT)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def hidden(reference: Reference) -> Any:
    """transformers' own last hidden states [tokens, size] of a text."""
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(CHECKPOINT, dtype=torch.float32)

    def states(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(torch.tensor([ids])).last_hidden_state[0]
            return found

    return states


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_is_the_tokenizer_and_detokenize_the_way_back(
    server: RunningServer, reference: Reference, text: str, prefix: str
) -> None:
    answer = post(
        f"{root(server)}{prefix}/tokenize", {"model": "openai_bls", "prompt": text, "return_token_strs": True}
    )
    assert answer["tokens"] == reference.tokenizer(text)["input_ids"]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert post(f"{root(server)}{prefix}/detokenize", {"tokens": answer["tokens"]}) == {"prompt": text}


@pytest.mark.parametrize("golden", [CHATS[0], CHATS[-1], *TOOL_CHATS[:1]])
def test_a_chats_tokens_are_those_of_its_completion(
    server: RunningServer, client: openai.OpenAI, reference: Reference, golden: Golden
) -> None:
    body: dict[str, Any] = {"model": "openai_bls", "messages": golden.messages}
    if golden.tools is not None:
        body["tools"] = golden.tools
    answer = post(f"{root(server)}/tokenize", body)
    assert answer["tokens"] == reference.prompt_token_ids(golden)
    completion = client.chat.completions.create(**body, max_tokens=1)
    assert completion.usage is not None
    assert answer["count"] == completion.usage.prompt_tokens
    text = post(f"{root(server)}/detokenize", {"tokens": answer["tokens"]})["prompt"]
    assert text == reference.tokenizer.apply_chat_template(
        golden.messages, tools=golden.tools, tokenize=False, add_generation_prompt=True
    )


def test_bad_requests(server: RunningServer) -> None:
    for path, body, param in (
        ("/tokenize", {"prompt": "x", "what": 1}, "what"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/v1/embeddings", {"input": ["x", ""]}, "input"),
        ("/v1/embeddings", {"input": "x", "dimensions": 7}, "dimensions"),
    ):
        response = httpx.post(f"{root(server)}{path}", json=body, timeout=TIMEOUT)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_are_the_last_tokens_hidden_state(
    client: openai.OpenAI, reference: Reference, hidden: Any, encoding: Any
) -> None:
    answer = client.embeddings.create(model="openai_bls", input=TEXTS, encoding_format=encoding)
    rows = [reference.tokenizer(text)["input_ids"] for text in TEXTS]
    assert [item.index for item in answer.data] == [0, 1, 2]
    for item, ids in zip(answer.data, rows, strict=True):
        vector: Any = item.embedding
        if encoding == "base64":
            # Asked for by name the SDK leaves it as it is.
            vector = _decoded(vector)
        expected = torch.nn.functional.normalize(hidden(ids)[-1], dim=0)
        assert torch.allclose(torch.tensor(vector), expected, atol=1e-3)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, rows))


def test_embeddings_as_the_sdk_asks_for_them(client: openai.OpenAI, reference: Reference, hidden: Any) -> None:
    """Base64, which it decodes; here of token ids, and pooled."""
    ids = reference.tokenizer(TEXTS[1])["input_ids"]
    answer = client.embeddings.create(model="openai_bls", input=[ids, ids[:3]], extra_body={"pooling": "mean"})
    for item, row in zip(answer.data, (ids, ids[:3]), strict=True):
        expected = torch.nn.functional.normalize(hidden(row).mean(dim=0), dim=0)
        assert torch.allclose(torch.tensor(item.embedding), expected, atol=1e-3)
    size = len(answer.data[0].embedding)
    assert client.embeddings.create(model="openai_bls", input="x", dimensions=size).data[0].embedding
    with pytest.raises(openai.BadRequestError, match=f"have {size}") as caught:
        client.embeddings.create(model="openai_bls", input="x", dimensions=size - 1)
    assert caught.value.param == "dimensions"


def test_an_input_that_is_too_long(client: openai.OpenAI, server: RunningServer) -> None:
    limit = post(f"{root(server)}/tokenize", {"prompt": ""})["max_model_len"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="openai_bls", input=[[5] * (limit + 1)])
    assert caught.value.code == "context_length_exceeded"
    assert client.embeddings.create(model="openai_bls", input=[[5] * limit]).usage.prompt_tokens == limit


def test_metrics(server: RunningServer, client: openai.OpenAI) -> None:
    messages: Any = CHATS[0].messages
    before = scrape(server)
    answer = client.chat.completions.create(model="openai_bls", messages=messages, max_tokens=5, temperature=0)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="openai_bls", messages=messages, max_tokens=0)
    after = scrape(server)
    assert answer.usage is not None

    def grown(name: str, **labels: str) -> float:
        return find(after, name, endpoint="chat.completions", **labels) - find(
            before, name, endpoint="chat.completions", **labels
        )

    assert grown("requests_total", outcome="done") == 1
    assert grown("requests_total", outcome="400") == 1
    assert grown("prompt_tokens_total") == answer.usage.prompt_tokens
    assert grown("generation_tokens_total") == answer.usage.completion_tokens
    for name in ("time_to_first_token", "e2e_request_latency", "time_per_output_token"):
        assert grown(f"{name}_seconds_count") == 1
    assert find(after, "requests_in_progress") == 0
    assert 0 <= find(after, "engine_kv_cache_usage_ratio") <= 1
    assert find(after, "engine_steps_total") > 0


def test_tritons_endpoints(server: RunningServer, client: openai.OpenAI, reference: Reference) -> None:
    text = TEXTS[1]
    ids = reference.tokenizer(text)["input_ids"]
    vector = client.embeddings.create(model="openai_bls", input=text, encoding_format="float").data[0].embedding

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
        embedded = ask({"endpoint": "embeddings", "input": json.dumps([text]), "model": "openai_bls"})
        assert embedded["data"][0]["embedding"] == pytest.approx(vector, abs=1e-3)
        with pytest.raises(TritonError) as caught:
            ask({"tokens": json.dumps(ids)})
        assert "'endpoint'" in caught.value.body["error"]["message"]


def test_a_scrape_sees_all_instances_whichever_it_reaches(two_instances: Path) -> None:
    with run_server(two_instances, env={"OPENAI_BLS_ENGINE": "null"}) as server:
        for count in range(1, 9):
            # A connection each, which either instance may get.
            body = {"messages": CHATS[0].messages, "max_tokens": 2}
            post(f"{server.openai_url}/chat/completions", body)
            assert find(scrape(server), "requests_total", endpoint="chat.completions", outcome="done") == count


def _decoded(text: str) -> list[float]:
    raw = base64.b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


Scrape = list[tuple[str, dict[str, str], float]]


def scrape(server: RunningServer) -> Scrape:
    response = httpx.get(f"{root(server)}/metrics", timeout=TIMEOUT)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def find(samples: Scrape, name: str, **labels: str) -> float:
    """The sum of what matches."""
    return sum(
        value
        for found, known, value in samples
        if found == f"openai_bls_{name}" and all(known.get(label) == text for label, text in labels.items())
    )
