"""The models of examples/, and a few more that only tests need, through the official SDK on one real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tritonclient.grpc import InferenceServerClient

from openai_bls.api.registry import ENDPOINTS
from openai_bls.launcher.smoke.check import run
from openai_bls.launcher.smoke.registry_checks import CHECKS
from openai_bls.launcher.smoke.session import Session, Target
from openai_bls.launcher.testing import RunningServer, run_server
from openai_bls.triton_models.server.model_index import GrpcModelIndex, HttpModelIndex
from tests.triton.conftest import ROOT
from tests.triton.playground.page_shell import Shell
from tests.unit.docs.blocks import all_blocks
from tests.waiting import until

pytestmark = pytest.mark.triton

EXAMPLES = ROOT / "examples"
TEXT = '{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }'
VECTOR = '{ name: "embedding" data_type: TYPE_FP32 dims: [ 2 ] }'
OTHERS = {
    "moderator": (
        TEXT,
        '{ name: "scores" data_type: TYPE_FP32 dims: [ 2 ] }',
        {"openai_task": "classify", "openai_labels": "violence,dull", "openai_threshold": "0.3"},
    ),
    "hanging": (TEXT, VECTOR, {"openai_task": "embeddings", "openai_timeout_s": "0.2"}),
    "broken": (TEXT, VECTOR, {"openai_task": "classify"}),
}
"""Models that only tests need: input, output, parameters."""
EXCLAMATION = "no!!"


def write_models(repository: Path) -> None:
    for name, (given, made, parameters) in OTHERS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        shutil.copy(Path(__file__).parent / "task_models" / "model.py", folder)
        lines = [
            f'name: "{name}"',
            'backend: "python"',
            "max_batch_size: 4",
            f"input [ {given} ]",
            f"output [ {made} ]",
        ]
        lines += [f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items()]
        (repository / name / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third repository."""
    repository = tmp_path_factory.mktemp("others")
    write_models(repository)
    return repository


@pytest.fixture(scope="module")
def example_server(repository: Path, others: Path) -> Iterator[RunningServer]:
    further = [f"--model-repository={path}" for path in (EXAMPLES, others)]
    flags = [*further, "--model-control-mode=explicit", "--load-model=*"]
    with run_server(repository, {"OPENAI_BLS_TASK_MODELS_INTERVAL_S": "0.1"}, flags) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(example_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=example_server.openai_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def triton(example_server: RunningServer) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(example_server.grpc_url) as client:
        yield client


def post(sdk: openai.OpenAI, path: str, body: dict[str, Any]) -> Any:
    return sdk.post(path, body=body, cast_to=object)


def tasks(sdk: openai.OpenAI) -> dict[str, str]:
    return {card.id: (card.model_extra or {})["task"] for card in sdk.models.list()}


def test_models_are_listed_with_their_task(sdk: openai.OpenAI) -> None:
    # The first request for one of them looks for it, if nobody has yet.
    sdk.models.retrieve("demo")
    sdk.embeddings.create(model="embedding", input="x")
    listed = tasks(sdk)
    assert listed["demo"] == listed["openai_bls"] == "generate"
    assert (listed["embedding"], listed["reranker"], listed["moderator"]) == ("embeddings", "rerank", "classify")
    assert "broken" not in listed
    assert (sdk.models.retrieve("reranker").model_extra or {})["task"] == "rerank"


def test_embedding(sdk: openai.OpenAI) -> None:
    texts = ["The capital of France", "the  capital of france", "capitals of France", "pears and apples"]
    answer = sdk.embeddings.create(model="embedding", input=texts)
    vectors = np.array([item.embedding for item in answer.data])
    assert vectors.shape == (4, 256)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    near = vectors @ vectors[0]
    assert near[0] == pytest.approx(near[1], abs=1e-6)
    assert near[1] > near[2] > 0.5 > near[3]
    # An n-gram is a token: of 23 characters with the ends, those of 3 to 5.
    assert sdk.embeddings.create(model="embedding", input=texts[0]).usage.prompt_tokens == 21 + 20 + 19
    # The SDK itself asks for base64.
    floats = sdk.embeddings.create(model="embedding", input=texts, encoding_format="float")
    assert np.array([item.embedding for item in floats.data]) == pytest.approx(vectors, abs=1e-7)
    cut = np.array(
        [item.embedding for item in sdk.embeddings.create(model="embedding", input=texts, dimensions=64).data]
    )
    assert cut == pytest.approx(vectors[:, :64] / np.linalg.norm(vectors[:, :64], axis=1, keepdims=True), abs=1e-6)


def test_more_inputs_than_a_batch_of_the_model_takes(sdk: openai.OpenAI) -> None:
    texts = [f"text {number}" for number in range(300)]
    together = [item.embedding for item in sdk.embeddings.create(model="embedding", input=texts).data]
    for number in (0, 63, 64, 299):
        alone = sdk.embeddings.create(model="embedding", input=texts[number]).data[0].embedding
        assert together[number] == pytest.approx(alone, abs=1e-7)


def test_embeddings_of_the_engine_stay_the_default(sdk: openai.OpenAI) -> None:
    default = sdk.embeddings.create(model=openai.omit, input="Hello")  # type: ignore[arg-type]
    assert default.model == "demo"
    assert default.data[0].embedding != sdk.embeddings.create(model="embedding", input="Hello").data[0].embedding


def test_reranker(sdk: openai.OpenAI) -> None:
    documents = ["Pears are fruit", {"text": "Paris is the capital of France"}, "the capital"]
    for path in ("/rerank", "/../v2/rerank", "/../rerank"):
        answer = post(sdk, path, {"query": "capital of France", "documents": documents, "top_n": 2})
        assert answer["model"] == "reranker"
        assert [(result["index"], round(result["relevance_score"], 3)) for result in answer["results"]] == [
            (1, 1.0),
            (2, 0.467),
        ]
        assert answer["results"][0]["document"] == {"text": "Paris is the capital of France"}
    for path in ("/score", "/../score"):
        scored = post(sdk, path, {"text_1": "pears", "text_2": ["Pears are fruit", "Paris"]})
        assert [item["score"] for item in scored["data"]] == [1.0, 0.0]
    cosine = post(sdk, "/score", {"model": "embedding", "text_1": "pears", "text_2": ["Pears", "France"]})
    assert [item["score"] for item in cosine["data"]] == pytest.approx([1.0, 0.0], abs=0.2)


def test_moderations(sdk: openai.OpenAI) -> None:
    answer = sdk.moderations.create(input=[EXCLAMATION, "so so"])
    loud, calm = answer.results
    assert (answer.model, loud.flagged, calm.flagged) == ("moderator", True, False)
    assert (loud.categories.violence, loud.category_scores.violence) == (True, 0.5)
    assert (loud.categories.model_extra, loud.category_scores.model_extra) == ({"dull": False}, {"dull": 0.25})
    assert sdk.moderations.create(model="moderator", input=EXCLAMATION).results[0].flagged


def test_rag(sdk: openai.OpenAI) -> None:
    question: Any = [{"role": "user", "content": "What is a KV cache?"}]
    passage = "A KV cache stores keys and values of earlier tokens."
    with_passage: Any = [{"role": "system", "content": passage}, *question]
    plain: Any = sdk.chat.completions.create(model="demo", messages=question, max_tokens=1)
    direct: Any = sdk.chat.completions.create(model="demo", messages=with_passage, temperature=0)
    answer: Any = sdk.chat.completions.create(model="rag", messages=question, temperature=0)
    assert answer.retrieved == passage
    # The engine saw it: its answer and the length of its prompt are those with the passage.
    assert answer.choices[0].message.content == direct.choices[0].message.content
    assert answer.choices[0].message.content.startswith("The KV cache stores the keys and values")
    assert answer.usage.prompt_tokens == direct.usage.prompt_tokens > plain.usage.prompt_tokens
    stream = sdk.chat.completions.create(
        model="rag", messages=question, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content
    assert last.usage == answer.usage
    # What it retrieves goes with the question.
    question = [{"role": "user", "content": "What is machine learning?"}]
    other: Any = sdk.chat.completions.create(model="rag", messages=question)
    assert other.retrieved.startswith("Machine learning")
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="rag", messages=question, stream=True, n=1000)
    assert caught.value.param == "n"


def test_on_tritons_port(example_server: RunningServer, sdk: openai.OpenAI) -> None:
    with openai.OpenAI(base_url=example_server.http_url, api_key="none", max_retries=0) as triton_http:

        def ask(endpoint: str, body: dict[str, Any]) -> Any:
            fields = {"endpoint": endpoint, "request": json.dumps(body)}
            answer: Any = triton_http.post("/v2/models/openai_bls/generate", body=fields, cast_to=object)
            return json.loads(answer["response"])

        reranked = ask("rerank", {"query": "pears", "documents": ["France", "pears"]})
        assert [result["index"] for result in reranked["results"]] == [1, 0]
        assert ask("score", {"text_1": "pears", "text_2": "pears"})["data"][0]["score"] == 1.0
        assert ask("moderations", {"input": EXCLAMATION})["results"][0]["flagged"]
        assert len(ask("embeddings", {"model": "embedding", "input": "x"})["data"][0]["embedding"]) == 256


def test_smoke_checks_find_their_models(example_server: RunningServer, sdk: openai.OpenAI) -> None:
    served = set(tasks(sdk).values())
    of_tasks = {e.name: e.paths[0] for e in ENDPOINTS if e.smoke and served & set(e.smoke.tasks)}
    assert {"rerank", "moderations", "classify"} <= set(of_tasks)
    wanted = {f"POST {path}" for path in of_tasks.values()} | {f"generate, {name}" for name in of_tasks}
    checks = [check for check in CHECKS if check.name in wanted]
    outcomes = list(run(checks, Session(Target(example_server.openai_url, example_server.http_url))))
    assert len(outcomes) == 2 * len(of_tasks) > 0
    assert [outcome.line() for outcome in outcomes if outcome.status != "ok"] == []


def test_blocks_of_the_pages(example_server: RunningServer, repository: Path, tmp_path: Path) -> None:
    """Those that say that they need these models."""
    shell = Shell(tmp_path, repository, example_server)
    blocks = [block for block in all_blocks() if block.needs == ("the examples",)]
    assert blocks
    for block in blocks:
        done = shell.run(block.language, block.code)
        assert done.returncode == 0, block.name + done.stdout + done.stderr


def test_refusals(sdk: openai.OpenAI, example_server: RunningServer) -> None:
    """Each is a sentence; the next request is answered."""
    with pytest.raises(
        openai.InternalServerError, match="'broken' cannot be used: it has no output 'scores'"
    ) as caught:
        sdk.moderations.create(model="broken", input="x")
    assert caught.value.status_code == 503
    assert (
        "model broken is refused as an openai_task model: it has no output 'scores'"
        in example_server.log_path.read_text(encoding="utf-8")
    )
    with pytest.raises(openai.InternalServerError, match="'moderator'") as caught:
        sdk.moderations.create(model="moderator", input="boom")
    assert "path" not in str(caught.value)
    with pytest.raises(openai.InternalServerError, match="this text is wrong"):
        sdk.moderations.create(model="moderator", input="wrong")
    assert sdk.moderations.create(model="moderator", input=EXCLAMATION).results[0].flagged


def test_a_model_that_hangs_meets_its_deadline(sdk: openai.OpenAI, others: Path) -> None:
    try:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match=r"'hanging' .* 0\.2 s") as caught:
                sdk.embeddings.create(model="hanging", input="x")
            assert caught.value.status_code == 504
        # Others are not held up.
        assert sdk.embeddings.create(model="embedding", input="x").data
    finally:
        (others / "hanging" / "go").touch()


def test_models_come_and_go(sdk: openai.OpenAI, triton: InferenceServerClient, example_server: RunningServer) -> None:
    body = {"model": "reranker", "query": "x", "documents": ["x"]}
    triton.unload_model("reranker")
    with pytest.raises((openai.InternalServerError, openai.NotFoundError)) as caught:
        post(sdk, "/rerank", body)
    assert caught.value.code in ("model_unavailable", "model_not_found")
    until(lambda: "reranker" not in tasks(sdk))
    with pytest.raises(openai.NotFoundError) as gone:
        post(sdk, "/rerank", body)
    assert gone.value.code == "model_not_found"
    # At once: the name is not known, so the server is asked.
    triton.load_model("reranker")
    assert post(sdk, "/rerank", body)["results"][0]["relevance_score"] == 1.0


def test_a_configuration_that_comes_with_a_load(sdk: openai.OpenAI, triton: InferenceServerClient) -> None:
    """No file has it: only the server knows."""
    config = triton.get_model_config("embedding", as_json=True)["config"]
    config["parameters"]["openai_output_embedding"] = {"string_value": "vector"}
    triton.load_model("embedding", config=json.dumps(config))
    until(lambda: "embedding" not in tasks(sdk))
    with pytest.raises(openai.InternalServerError, match=r"'embedding' .*'vector'"):
        sdk.embeddings.create(model="embedding", input="x")
    triton.unload_model("embedding")
    triton.load_model("embedding")
    until(lambda: "embedding" in tasks(sdk))
    assert sdk.embeddings.create(model="embedding", input="x").data


@pytest.mark.anyio
async def test_http_and_grpc_tell_the_same(example_server: RunningServer) -> None:
    by_http = HttpModelIndex("127.0.0.1", example_server.ports.http)
    by_grpc = GrpcModelIndex(example_server.grpc_url)
    names = await by_http.ready()
    assert {"openai_bls", "embedding", "broken"} <= set(names)
    assert sorted(await by_grpc.ready()) == sorted(names)
    asked = ["embedding", "reranker", "nope"]
    http_configs, grpc_configs = await by_http.configs(asked), await by_grpc.configs(asked)
    assert set(http_configs) == set(grpc_configs) == {"embedding", "reranker"}
    for name, config in http_configs.items():
        assert grpc_configs[name]["parameters"] == config["parameters"]
        assert grpc_configs[name]["max_batch_size"] == config["max_batch_size"]
