"""The real vLLM behind the real Triton: decisions of the demo, and embeddings, ranks and scores of a real embedder."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import torch

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.manifest import BuildError
from openai_bls.launcher.testing import RunningServer, copy_models, run_server
from tests.paths import DEMO, ROOT
from tests.triton.api.test_decisions import test_choices_that_begin_alike, test_refusals
from tests.triton.reference import Reference
from tests.triton.triton_client import GrpcStream, generate, infer_input
from tests_vllm.installed.behind_triton import real_embedder
from tests_vllm.installed.conftest import LIMIT_S
from tests_vllm.vllm_python import vllm_python

pytestmark = [pytest.mark.vllm_versions, pytest.mark.timeout(1800)]

__all__ = ["test_choices_that_begin_alike", "test_refusals"]

TOLERANCE = 1e-5
TEXTS = (
    "A man is eating food.",
    "Someone eats a meal",
    "The girl is carrying a baby.",
    "naïve café, 日本語, 12.5 %",
    "Triton serves models. " * 30,
)


def built(repository: Path, model: Path, *more: str) -> None:
    """Build a checkpoint for vLLM into a repository."""
    options = ("--engine", "vllm", "--model", str(model), "--engine-python", vllm_python(), "--no-self-test", *more)
    command = [sys.executable, "-m", "openai_bls", "build", "--model-repository", str(repository), *options]
    subprocess.run(command, check=True, timeout=LIMIT_S)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_embedder.fetch(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def server(embedder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two engines of vLLM: the demo, and the embedder beside it."""
    repository = tmp_path_factory.mktemp("vllm") / "models"
    copy_models(ROOT / "model_repository", repository)
    built(repository, DEMO, "--max-batch-size", "8")
    built(repository, embedder, "--name", "minilm", "--served-model-name", "minilm", "--task", "embed")
    with run_server(repository, timeout=LIMIT_S) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="module")
def vectors(embedder: Path) -> torch.Tensor:
    """What the embedder means, shape [texts, size]."""
    return real_embedder.embeddings(embedder, TEXTS)


def close(found: Any, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), wanted, rtol=0, atol=TOLERANCE)


def test_embeddings_are_those_of_sentence_transformers(client: openai.OpenAI, vectors: torch.Tensor) -> None:
    assert vectors.shape == (len(TEXTS), real_embedder.SIZE)
    # The SDK itself asks for base64.
    ways: tuple[Literal["base64", "float"], ...] = ("base64", "float")
    for how in ways:
        answer = client.embeddings.create(model="minilm", input=list(TEXTS), encoding_format=how)
        rows = [floats(item.embedding) for item in answer.data]
        close(rows, vectors)
    alone = client.embeddings.create(model="minilm", input=TEXTS[1])
    close([alone.data[0].embedding], vectors[1:2])
    assert answer.usage.prompt_tokens > alone.usage.prompt_tokens > 0
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="minilm", input=TEXTS[0], dimensions=64)
    assert refused.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "Hi"}])
    assert refused.value.param == "model"


def floats(found: Any) -> list[float]:
    """A vector as the SDK gives it, in either format."""
    if isinstance(found, str):
        found = torch.frombuffer(bytearray(base64.b64decode(found)), dtype=torch.float32).tolist()
    return list(found)


def test_ranks_and_scores_are_by_the_cosine(client: openai.OpenAI, vectors: torch.Tensor) -> None:
    cosines = vectors[1:] @ vectors[0]
    asked: dict[str, Any] = {"model": "minilm", "query": TEXTS[0], "documents": list(TEXTS[1:])}
    ranks: Any = client.post("/rerank", body=asked, cast_to=object)
    order = [result["index"] for result in ranks["results"]]
    assert order == cosines.argsort(descending=True).tolist()
    assert order[0] == 0
    close([result["relevance_score"] for result in ranks["results"]], cosines[order])
    scores: Any = client.post(
        "/score", body={"model": "minilm", "text_1": TEXTS[0], "text_2": list(TEXTS[1:])}, cast_to=object
    )
    close([item["score"] for item in scores["data"]], cosines)


def test_tritons_doors(server: RunningServer, vectors: torch.Tensor) -> None:
    body = json.dumps({"model": "minilm", "input": list(TEXTS)})
    fields = {"endpoint": "embeddings", "request": body}
    by_http = json.loads(generate(server.http_url, "openai_bls", fields)["response"])
    close([item["embedding"] for item in by_http["data"]], vectors)
    with GrpcStream(server.grpc_url) as grpc:
        grpc.send("openai_bls", [infer_input(name, [text], "BYTES") for name, text in fields.items()])
        (answered,) = grpc.responses()
    by_grpc = json.loads(answered.as_numpy("response").item())
    close([item["embedding"] for item in by_grpc["data"]], vectors)
    ranks = {"model": "minilm", "query": TEXTS[0], "documents": list(TEXTS[1:])}
    fields = {"endpoint": "rerank", "request": json.dumps(ranks)}
    ranked = json.loads(generate(server.http_url, "openai_bls", fields)["response"])
    assert ranked["results"][0]["index"] == 0


def test_the_embedded_engine_refuses_it_with_what_to_type(embedder: Path, tmp_path: Path) -> None:
    copy_models(ROOT / "model_repository", tmp_path / "models")
    with pytest.raises(BuildError, match=r"--engine vllm.*--task embed"):
        build(BuildOptions(str(embedder), tmp_path / "models", "transformers"), print)
