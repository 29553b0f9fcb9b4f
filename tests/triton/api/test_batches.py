"""Files and batches with the official SDK, the run-batch command, and vLLM's small endpoints."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_bls.api.batches.records import ENDED
from openai_bls.commands import run_batch
from openai_bls.launcher.testing import RunningServer

pytestmark = pytest.mark.triton

GREEDY = {"model": "openai_bls", "temperature": 0, "max_tokens": 12}
ENDLESS = {**GREEDY, "max_tokens": 900, "ignore_eos": True, "prompt": "Once"}
WAIT_S = 60
QUESTIONS = ["What is machine learning?", "Hello!", "My name is Alice."]


def asked(url: str, bodies: list[dict[str, Any]]) -> bytes:
    lines = [{"custom_id": f"q{at}", "method": "POST", "url": url, "body": body} for at, body in enumerate(bodies)]
    return "\n".join(map(json.dumps, lines)).encode()


def chats() -> list[dict[str, Any]]:
    return [{**GREEDY, "messages": [{"role": "user", "content": text}]} for text in QUESTIONS]


def begun(client: openai.OpenAI, lines: bytes, url: Any = "/v1/completions") -> str:
    """Id of a new batch."""
    source = client.files.create(file=lines, purpose="batch")
    return client.batches.create(input_file_id=source.id, endpoint=url, completion_window="24h").id


def until(client: openai.OpenAI, batch_id: str, condition: Callable[[Any], object]) -> Any:
    """The batch, once the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition(batch := client.batches.retrieve(batch_id)):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    return until(client, batch_id, lambda batch: batch.status in ENDED)


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    return {line["custom_id"]: line["response"] for line in found}


def test_a_batch_answers_as_the_endpoints_do(client: openai.OpenAI) -> None:
    bodies = [*chats(), {"messages": [], "what": 1}]
    source = client.files.create(file=("in.jsonl", asked("/v1/chat/completions", bodies)), purpose="batch")
    batch = client.batches.create(
        input_file_id=source.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    done = ended(client, batch.id)
    assert (done.status, done.metadata, done.errors) == ("completed", {"a": "b"}, None)
    assert done.request_counts.to_dict() == {"total": 4, "completed": 3, "failed": 1}
    answers = results(client, done.output_file_id)
    for at, body in enumerate(bodies[:3]):
        said = client.chat.completions.create(**body)
        assert answers[f"q{at}"]["body"]["choices"][0]["message"]["content"] == said.choices[0].message.content
    assert results(client, done.error_file_id)["q3"]["status_code"] == 400
    assert done.id in [listed.id for listed in client.batches.list(limit=1)]
    assert {source.id, done.output_file_id} <= {file.id for file in client.files.list()}
    assert client.files.delete(source.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(source.id)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {**GREEDY, "prompt": "Once"}),
        ("/v1/embeddings", {"model": "openai_bls", "input": "Hello"}),
        ("/v1/responses", {"model": "openai_bls", "input": "Hello!", "max_output_tokens": 8}),
    ],
)
def test_other_endpoints(client: openai.OpenAI, url: Any, body: dict[str, Any]) -> None:
    done = ended(client, begun(client, asked(url, [body]), url))
    assert (done.status, done.request_counts.completed) == ("completed", 1)
    assert done.usage is not None
    assert done.usage.input_tokens > 0


def test_a_batch_is_cancelled(client: openai.OpenAI) -> None:
    batch = client.batches.retrieve(begun(client, asked("/v1/completions", [ENDLESS] * 200)))
    with pytest.raises(openai.BadRequestError, match="cancel"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    done = ended(client, batch.id)
    assert done.status == "cancelled"
    assert done.request_counts.completed < 200


def test_batches_take_turns(client: openai.OpenAI) -> None:
    """While four long ones run, a fifth gets answers, a garbage file fails, and a cancelled one is cancelled."""
    lines = asked("/v1/completions", [{**ENDLESS, "max_tokens": 50}] * 500)
    long = [begun(client, lines) for _ in range(4)]
    try:
        for batch_id in long:
            assert until(client, batch_id, lambda batch: batch.status == "in_progress").request_counts.total == 500
        fifth = begun(client, asked("/v1/completions", [{**GREEDY, "prompt": "Once"}] * 3))
        failed = ended(client, begun(client, b'{"custom_id": 1'))
        assert failed.status == "failed"
        assert failed.errors.data[0].code == "invalid_json_line"
        another = begun(client, lines)
        client.batches.cancel(another)
        assert ended(client, another).status == "cancelled"
        done = ended(client, fifth)
        assert (done.status, len(results(client, done.output_file_id))) == ("completed", 3)
        assert {client.batches.retrieve(batch_id).status for batch_id in long} == {"in_progress"}
    finally:
        for batch_id in long:
            client.batches.cancel(batch_id)
    for batch_id in long:
        cancelled = ended(client, batch_id)
        assert (cancelled.status, cancelled.request_counts.total) == ("cancelled", 500)
        if cancelled.request_counts.completed:
            assert len(results(client, cancelled.output_file_id)) == cancelled.request_counts.completed


def test_run_batch(server: RunningServer, client: openai.OpenAI, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(asked("/v1/chat/completions", chats()))
    parser = argparse.ArgumentParser()
    run_batch.add_arguments(parser)
    options = parser.parse_args(["-i", str(source), "-o", str(target), "--url", server.openai_url])
    assert run_batch.run(options) == 0
    found = {line["custom_id"]: line["response"] for line in map(json.loads, target.read_text().splitlines())}
    for at, body in enumerate(chats()):
        said = client.chat.completions.create(**body)
        assert found[f"q{at}"]["body"]["choices"][0]["message"]["content"] == said.choices[0].message.content


def test_the_server_itself(server: RunningServer, client: openai.OpenAI) -> None:
    """A prompt is cached until the cache is reset."""
    root = server.openai_url.removesuffix("/v1")
    assert httpx.get(f"{root}/ping").status_code == httpx.post(f"{root}/ping").status_code == 200
    assert httpx.get(f"{root}/load").json()["server_load"] >= 0
    assert httpx.get(f"{root}/tokenizer_info").status_code == 404
    body: Any = {**GREEDY, "prompt": "A long prompt that takes several pages of the cache. " * 20}

    def cached() -> int:
        usage = client.completions.create(**body).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    cached()
    assert cached() > 0
    # Other tests' requests may have just ended.
    while (answer := httpx.post(f"{root}/reset_prefix_cache")).status_code == 503:
        time.sleep(0.05)
    assert answer.status_code == 200
    assert cached() == 0
