"""Files and batches with the official SDK, the run-batch command, and vLLM's small endpoints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_bls.commands import run_batch
from openai_bls.launcher.testing import RunningServer
from tests.triton.waiting import until

pytestmark = pytest.mark.triton

GREEDY = {"model": "openai_bls", "temperature": 0, "max_tokens": 12}
QUESTIONS = ["What is machine learning?", "Hello!", "My name is Alice."]


def asked(url: str, bodies: list[dict[str, Any]]) -> bytes:
    lines = [{"custom_id": f"q{at}", "method": "POST", "url": url, "body": body} for at, body in enumerate(bodies)]
    return "\n".join(map(json.dumps, lines)).encode()


def chats() -> list[dict[str, Any]]:
    return [{**GREEDY, "messages": [{"role": "user", "content": text}]} for text in QUESTIONS]


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    going = ("validating", "in_progress", "finalizing")
    return until(lambda: None if (batch := client.batches.retrieve(batch_id)).status in going else batch)


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


def test_a_batch_is_cancelled(client: openai.OpenAI) -> None:
    endless = {**GREEDY, "max_tokens": 900, "ignore_eos": True, "prompt": "Once"}
    source = client.files.create(file=asked("/v1/completions", [endless] * 200), purpose="batch")
    batch = client.batches.create(input_file_id=source.id, endpoint="/v1/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="cancel"):
        client.files.delete(source.id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    done = until(lambda: found if (found := client.batches.retrieve(batch.id)).status == "cancelled" else None)
    assert done.request_counts is not None
    assert done.request_counts.completed < 200


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
    until(lambda: httpx.post(f"{root}/reset_prefix_cache").status_code == 200)
    assert cached() == 0
