"""Embeddings, scores and classes of the real vLLM, held against transformers; each model is built by the command."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.support.asking import Answer, Asker
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, PromptRequest, PromptResult
from openai_bls.core.manifest import EngineLoadError, load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.loading import arguments
from openai_bls.transport.engine_process.source import StartedProcess
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from openai_bls_vllm.record import VllmRecord
from tests_vllm import pooling_models
from tests_vllm.installed.conftest import LIMIT_S, SILENCE_S
from tests_vllm.pooling_models import PAIRS, TEXTS
from tests_vllm.vllm_python import vllm_python

pytestmark = pytest.mark.timeout(1800)

TOLERANCE = 1e-5


class Pooled:
    """An engine that pools, its tokenizer, and the checkpoint that it was built from."""

    def __init__(self, engine: ProcessEngine, asker: Asker, encoder: PromptEncoder) -> None:
        self.engine = engine
        self._asker = asker
        self._encoder = encoder

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    def prompts(self, **fields: Any) -> PromptResult:
        found = self._encoder.prepare(PromptRequest(**fields))
        assert found.error is None
        return found

    def ask(self, prompts: Sequence[list[int]], way: Any, types: Sequence[int] = (), **fields: Any) -> list[Answer]:
        requests = [
            GenerationRequest(
                0, prompt, 0, pooling=way, compressed_token_type_ids=types[number] if types else None, **fields
            )
            for number, prompt in enumerate(prompts)
        ]
        return self._asker.ask(requests, LIMIT_S)

    def numbers(self, *args: Any, **fields: Any) -> list[list[float]]:
        found = self.ask(*args, **fields)
        assert [one.error for one in found] == [None] * len(found)
        return [one.embedding or [] for one in found]


def build(repository: Path, model: Path, task: str, *more: str) -> Path:
    """Folder of an engine that is built from a checkpoint for a task."""
    options = ("--engine", "vllm", "--task", task, "--model", str(model), "--engine-python", vllm_python(), *more)
    command = [sys.executable, "-m", "openai_bls", "build", "--model-repository", str(repository), *options]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    return repository / "tensorrt_llm" / "1"


@contextlib.contextmanager
def served(folder: Path, client: str = "auto") -> Iterator[Pooled]:
    """The engine in a folder, loaded."""
    asker = Asker()
    source = StartedProcess(vllm_python(), arguments(folder, {"vllm_client": client}, EngineSettings()), 0)
    engine = ProcessEngine(source, asker.on_step, SILENCE_S)
    asker.engine = engine
    try:
        yield Pooled(engine, asker, PromptEncoder(folder.parent.parent / "preprocessing" / "1" / "tokenizer"))
    finally:
        engine.close()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint that embeds, and the folder of its engine, which has tested itself."""
    folder = tmp_path_factory.mktemp("embed")
    model = pooling_models.write_embedder(folder / "model")
    return model, build(folder / "models", model, "embed")


@pytest.mark.parametrize("client", ["core_client", pytest.param("async_llm", marks=pytest.mark.vllm_versions)])
def test_embeddings_are_those_of_transformers(embedder: tuple[Path, Path], client: str) -> None:
    model, folder = embedder
    answers = VllmRecord.of(load_manifest(folder)).answers
    assert answers is not None
    assert {len(one) for one in answers.embeddings} == {64}
    with served(folder, client) as pooled:
        info = pooled.info
        assert (info.task, info.embedding_size, info.matryoshka_dimensions) == ("embeddings", 64, (8, 16))
        # Of sentence-transformers' file, the model itself takes 128.
        assert info.max_model_len == 100
        prompts = pooled.prompts(prompts=list(TEXTS)).prompt_token_ids
        for size in (None, 8, 16):
            wanted = pooling_models.embeddings(model, TEXTS, size)
            for one, other in zip(pooled.numbers(prompts, "embed", dimensions=size), wanted, strict=True):
                assert one == pytest.approx(other, abs=TOLERANCE)
        many = pooled.numbers(prompts * 40, "embed")
        for number, one in enumerate(many):
            assert one == pytest.approx(many[number % len(TEXTS)], abs=TOLERANCE)
        wrong = [*pooled.ask(prompts[:1], "embed", dimensions=9), *pooled.ask(prompts[:1], "classify")]
        assert [one.reason for one in wrong] == ["error", "error"]
        # Which it survives.
        assert pooled.numbers(prompts[:1], "embed")[0] == pytest.approx(many[0], abs=TOLERANCE)


@pytest.mark.vllm_versions
def test_scores_of_pairs_are_those_of_transformers(tmp_path: Path) -> None:
    model = pooling_models.write_classifier(tmp_path / "model", ["relevance"])
    with served(build(tmp_path / "models", model, "score", "--no-self-test")) as pooled:
        assert pooled.info.task == "score"
        found = pooled.prompts(pairs=list(PAIRS))
        wanted = [torch.sigmoid(one).tolist() for one in pooling_models.logits(model, PAIRS)]
        scores = pooled.numbers(found.prompt_token_ids, "classify", found.compressed_token_type_ids)
        for one, other in zip(scores, wanted, strict=True):
            assert one == pytest.approx(other, abs=TOLERANCE)
        # Token types tell the texts apart.
        without = pooled.numbers(found.prompt_token_ids, "classify")
        assert any(abs(a[0] - b[0]) > 1e-3 for a, b in zip(scores, without, strict=True))


@pytest.mark.vllm_versions
def test_classes_are_those_of_transformers(tmp_path: Path) -> None:
    model = pooling_models.write_classifier(tmp_path / "model", ["fine", "toxic", "spam"])
    folder = build(tmp_path / "models", model, "classify", "--no-self-test")
    with served(folder) as pooled:
        assert (pooled.info.task, pooled.info.labels) == ("classify", ("fine", "toxic", "spam"))
        prompts = pooled.prompts(prompts=list(TEXTS)).prompt_token_ids
        wanted = [torch.softmax(one, -1).tolist() for one in pooling_models.logits(model, TEXTS)]
        for one, other in zip(pooled.numbers(prompts, "classify"), wanted, strict=True):
            assert one == pytest.approx(other, abs=TOLERANCE)


@pytest.mark.vllm_versions
def test_a_model_that_is_not_for_the_task_is_refused(tmp_path: Path) -> None:
    model = pooling_models.write_classifier(tmp_path / "model", ["fine", "toxic"])
    folder = build(tmp_path / "models", model, "embed", "--no-self-test")
    with pytest.raises(EngineLoadError, match="--task"), served(folder):
        pass
