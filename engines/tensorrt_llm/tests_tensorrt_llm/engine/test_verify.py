"""`openai-bls verify` with an engine of TensorRT-LLM, of either Triton backend."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from openai_bls.commands import verify
from openai_bls.core.manifest import EngineLoadError, FileRecord, Manifest, load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.unit.commands.verify_support import ANSWER, answer_length, answering_repository, change, run
from tests.unit.core_support import VOCAB_SIZE, tiny_tokenizer
from tests_tensorrt_llm.engine.fake_engines import write_fake_engine
from tests_tensorrt_llm.engine.fake_support import in_process

CONFIG = r"""# parameters { key: "nothing" value { string_value: "of this" } }
name: "tensorrt_llm"
parameters { key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.5" } }
parameters {
  key: "max_attention_window_size"
  value: { string_value: "1024,4096" }
}
"""


@pytest.fixture
def repository(tmp_path: Path, tokenizer_dir: Path) -> Path:
    return answering_repository(tmp_path / "model_repository", tokenizer_dir)


def tensorrt_manifest(backend: str) -> Manifest:
    fields = {"version": "1.2.1", "backend": backend}
    return Manifest(
        engine="tensorrt_llm",
        model_name="tiny",
        max_model_len=64,
        max_batch_size=4,
        created=1,
        record=msgspec.convert(fields, TensorRtLlmRecord).fields(),
    )


@pytest.mark.parametrize("backend", ["python", "cpp"])
def test_settings(tmp_path: Path, backend: str) -> None:
    """Of the C++ backend those that the LLM API has too."""
    config = tmp_path / "config.pbtxt"
    assert verify.read_settings(config, tensorrt_manifest("python")) == EngineSettings()
    own = 'parameters { key: "gpt_model_path" value { string_value: "/engine" } }\n' if backend == "cpp" else ""
    config.write_text(CONFIG + own)
    assert verify.read_settings(config, tensorrt_manifest(backend)) == EngineSettings(
        kv_cache_free_gpu_mem_fraction=0.5, max_attention_window_size="1024,4096"
    )


@pytest.mark.parametrize("backend", ["python", "cpp"])
def test_a_tensorrt_engine_without_tensorrt_llm(backend: str, repository: Path) -> None:
    """Both kinds are loaded by the LLM API."""
    record_ = tensorrt_manifest(backend).record
    change(repository, engine="tensorrt_llm", record=record_, engine_files={"rank0.engine": FileRecord(0)})
    engine = repository / "tensorrt_llm" / "1" / "engine"
    engine.mkdir()
    (engine / "rank0.engine").touch()
    with pytest.raises(EngineLoadError, match=r"TensorRT-LLM 1\.2\.1"):
        verify.load_engine(repository / "tensorrt_llm", load_manifest(engine.parent), lambda step: None)


@pytest.mark.parametrize("backend", ["python", "cpp"])
def test_a_tensorrt_engine(
    backend: Literal["python", "cpp"], repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over the fake: engines of both Triton backends are loaded by the LLM API."""
    checkpoint = tmp_path / "tiny"
    checkpoint.mkdir()
    end = VOCAB_SIZE - 1
    config = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": VOCAB_SIZE, "eos_token_id": end}
    (checkpoint / "config.json").write_bytes(msgspec.json.encode(config))
    version_dir = repository / "tensorrt_llm" / "1"
    shutil.rmtree(version_dir)
    tokens = ",".join(map(str, tiny_tokenizer().encode(ANSWER).ids))
    with in_process(tokens=tokens) as api:
        write_fake_engine(version_dir, checkpoint, "tensorrt", api, max_model_len=256, max_batch_size=2)
        built = TensorRtLlmRecord.of(load_manifest(version_dir))
        change(repository, record=msgspec.structs.replace(built, backend=backend).fields())
        assert run(repository) == 0
    output = capsys.readouterr().out
    assert "engine: tiny by tensorrt_llm 1.2.1, 256 tokens, 2 sequences" in output
    assert f"answer:\n{ANSWER}\n{answer_length()} tokens, stop; " in output
