"""What does not fit together is refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core.machine.nvidia_smi import InstalledGpu
from openai_bls.core.manifest import EngineLoadError, KvCacheSettings, LoraSettings, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import LlmOptions, LoraAdapter, Version
from openai_bls_tensorrt_llm.installed.module import IMAGES
from openai_bls_tensorrt_llm.loading import llm_options, load, max_logprobs
from tests.engine_contract.support import Recorder
from tests_tensorrt_llm.engine.scripted_api import TUNED, ScriptedApi, manifest, write_engine

SETTINGS = EngineSettings()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tensorrt_llm" / "1"


def sentence(folder: Path, built: Manifest, api: ScriptedApi | None = None, settings: EngineSettings = SETTINGS) -> str:
    with pytest.raises(EngineLoadError) as caught:
        load(folder, built, settings, Recorder(), api=api or ScriptedApi())
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) not in message
    return message


def test_an_engine_that_loads(folder: Path) -> None:
    built = write_engine(folder, manifest(compute_capability="9.0", gather_logits=True))
    api, recorder = ScriptedApi(), Recorder()
    engine = load(folder, built, SETTINGS, recorder, api=api)
    assert (engine.info.engine, engine.info.version) == ("tensorrt_llm", "tensorrt_llm 1.2.1")
    assert "logprobs" in engine.info.supported
    assert {"stop_words", "stop_token_ids"} <= set(engine.info.supported)
    assert not {"pooling", "grammar", "lora_name"} & set(engine.info.supported)
    assert engine.info.max_logprobs == 20
    engine.close()
    assert api.llm is not None
    assert api.llm.options.model == folder / "engine"
    assert api.llm.shutdowns == 1


def test_options(folder: Path) -> None:
    built = write_engine(
        folder,
        manifest(
            tensor_parallel_size=2,
            pipeline_parallel_size=2,
            max_num_tokens=128,
            max_beam_width=3,
            kv_cache_dtype="fp8",
            gather_logits=True,
            lora=LoraSettings({"b": "lora/b", "a": "lora/a"}, 4, 16, ("attn_q",)),
        ),
    )
    for name in ("lora/a", "lora/b", "tokenizer"):
        (folder / name).mkdir(parents=True)
    settings = EngineSettings(
        kv_cache_free_gpu_mem_fraction=0.5,
        max_tokens_in_paged_kv_cache=1000,
        kv_cache_host_memory_bytes=1 << 30,
        enable_kv_cache_reuse=False,
        max_attention_window_size="1024, 4096",
        enable_chunked_context=True,
        batch_scheduler_policy="max_utilization",
        guided_decoding_backend="xgrammar",
    )
    assert llm_options(folder, built, settings) == LlmOptions(
        model=folder / "engine",
        flow="tensorrt",
        max_batch_size=4,
        max_model_len=64,
        max_num_tokens=128,
        max_beam_width=3,
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        tokenizer=folder / "tokenizer",
        kv_cache_dtype="fp8",
        kv_cache_free_gpu_mem_fraction=0.5,
        max_tokens_in_paged_kv_cache=1000,
        kv_cache_host_memory_bytes=1 << 30,
        enable_kv_cache_reuse=False,
        max_attention_window_size=(1024, 4096),
        enable_chunked_context=True,
        batch_scheduler_policy="max_utilization",
        guided_decoding_backend="xgrammar",
        gather_generation_logits=True,
        lora=(LoraAdapter("b", folder / "lora/b", 1), LoraAdapter("a", folder / "lora/a", 2)),
        max_loras=4,
        max_lora_rank=16,
        lora_target_modules=("attn_q",),
    )


def test_what_is_not_set_is_left_to_tensorrt_llm(folder: Path) -> None:
    built = write_engine(folder, manifest())
    assert llm_options(folder, built, SETTINGS) == LlmOptions(
        model=folder / "engine", flow="tensorrt", max_batch_size=4, max_model_len=64
    )
    cache = KvCacheSettings(max_tokens_in_kv_cache=500, free_memory_fraction=0.4)
    options = llm_options(folder, msgspec.structs.replace(built, kv_cache=cache), SETTINGS)
    assert (options.max_tokens_in_paged_kv_cache, options.kv_cache_free_gpu_mem_fraction) == (500, 0.4)


def test_a_checkpoint_of_the_pytorch_flow(folder: Path) -> None:
    """Any version runs it, on any GPU."""
    built = write_engine(folder, manifest(flow="pytorch", version="1.0.0", compute_capability="8.0"))
    api = ScriptedApi()
    load(folder, built, SETTINGS, Recorder(), api=api).close()
    assert api.llm is not None
    assert api.llm.options.model == folder / "checkpoint"
    assert api.llm.options.flow == "pytorch"


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def longer(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b" ")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "an engine file is missing": (without("engine/rank0.engine"), "1/engine/rank0.engine cannot be read"),
    "an engine file has changed": (longer("engine/rank0.engine"), "1/engine/rank0.engine has not the size"),
    "a checkpoint file is missing": (without("checkpoint/config.json"), "checkpoint/config.json cannot be read"),
    "a checkpoint file has changed": (longer("checkpoint/config.json"), "checkpoint/config.json has not the size"),
    "a build was cut short": (lambda folder: (folder / ".aside-old-checkpoint").mkdir(), "was cut short"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_files(folder: Path, what: str) -> None:
    built = write_engine(folder, manifest())
    spoil, expected = SPOILT[what]
    spoil(folder)
    message = sentence(folder, built)
    assert expected in message
    assert "`openai-bls build" in message


RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "another version": (
        {"version": "1.0.0"},
        "was built by TensorRT-LLM 1.0.0, and this machine has 1.2.1: a TensorRT engine runs with its own version "
        "only, so build it again here, or use the image tritonserver:25.10-trtllm-python-py3",
    ),
    "a version without an image": ({"version": "1.2.0rc3"}, "TensorRT-LLM 1.2.0rc3, and this machine has 1.2.1"),
    "another compute capability": (
        {"compute_capability": "8.9", "gpu": "NVIDIA L4"},
        "compute capability 8.9 (NVIDIA L4), and GPU 0 is NVIDIA H100 80GB HBM3 with 9.0",
    ),
    "too few GPUs": ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "needs 4 GPUs"),
    "the C++ backend": ({"backend": "cpp"}, "run the build again"),
    "an unknown type of cache": ({"kv_cache_dtype": "int3"}, "kv_cache_dtype 'int3'"),
    "an adapter that is missing": ({"lora": TUNED}, "the adapter tuned is missing"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_records(folder: Path, what: str) -> None:
    record, expected = RECORDS[what]
    built = write_engine(folder, manifest(**record))
    assert expected in sentence(folder, built)


@pytest.mark.parametrize("changes", [{"record": {}}, {"engine_files": {}}])
def test_no_record(folder: Path, changes: dict[str, Any]) -> None:
    assert "openai-bls build" in sentence(folder, msgspec.structs.replace(write_engine(folder, manifest()), **changes))


@pytest.mark.parametrize("flow", ["tensorrt", "pytorch"])
def test_no_gpu(folder: Path, flow: str) -> None:
    built = write_engine(folder, manifest(flow=flow))
    api = ScriptedApi()
    api.installed = []
    assert "1 GPU (--tp-size 1, --pp-size 1), " in sentence(folder, built, api)


def test_gpus_beyond_the_ranks_do_not_matter(folder: Path) -> None:
    built = write_engine(folder, manifest(compute_capability="9.0"))
    api = ScriptedApi()
    api.installed = [*api.installed, InstalledGpu("NVIDIA L4", "8.9", 24 << 30)]
    load(folder, built, SETTINGS, Recorder(), api=api).close()


def test_guided_decoding_needs_a_tokenizer(folder: Path) -> None:
    built = write_engine(folder, manifest())
    settings = EngineSettings(guided_decoding_backend="llguidance")
    assert "guided_decoding_backend " in sentence(folder, built, settings=settings)
    (folder / "tokenizer").mkdir()
    engine = load(folder, built, settings, Recorder(), api=ScriptedApi())
    engine.close()
    assert engine.info.grammar_backend == "llguidance"
    assert engine.info.grammar_kinds == ("json_schema", "regex")
    assert engine.info.grammar_dialect == "guided_decoding"
    assert "grammar" in engine.info.supported


def test_tensorrt_llm_is_not_installed(folder: Path) -> None:
    built = write_engine(folder, manifest())
    with pytest.raises(EngineLoadError, match=r"TensorRT-LLM 1\.2\.1, .*26\.07"):
        load(folder, built, SETTINGS, Recorder())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc: out of memory\nstack"),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA"),
    ],
)
def test_memory(folder: Path, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    built = write_engine(folder, manifest())
    api = ScriptedApi()
    api.open_error = error
    message = sentence(folder, built, api, EngineSettings(kv_cache_free_gpu_mem_fraction=0.9))
    assert "lower kv_cache_free_gpu_mem_fraction (now 0.9)" in message
    assert "max_tokens_in_paged_kv_cache (now 900 tokens)" in sentence(
        folder, built, api, EngineSettings(max_tokens_in_paged_kv_cache=900)
    )
    assert "Traceback" in caplog.text


def test_another_failure(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    built = write_engine(folder, manifest())
    api = ScriptedApi()
    api.open_error = RuntimeError("Failed to deserialize cuda engine.\nfile plan.cpp")
    assert sentence(folder, built, api) == ("TensorRT-LLM does not load the model: Failed to deserialize cuda engine.")
    assert "plan.cpp" in caplog.text
    api.open_error = EngineLoadError("TensorRT-LLM 1.2.1 has no llguidance")
    assert sentence(folder, built, api) == "TensorRT-LLM 1.2.1 has no llguidance"


def test_log_probabilities() -> None:
    """By what the API says of the model, its flow and its version."""
    api = ScriptedApi()
    options = LlmOptions(model=Path("engine"), flow="tensorrt", max_batch_size=1, max_model_len=8)
    assert max_logprobs(api, options, 1000) == 20
    assert max_logprobs(api, options, 7) == 7
    assert max_logprobs(api, msgspec.structs.replace(options, flow="pytorch"), 1000) == 0
    api.fields = ("seed",)
    assert max_logprobs(api, options, 1000) == 0


def test_images() -> None:
    """Newest tag of each version; the order of versions is that of tags."""
    versions = [Version.parse(text) for text in IMAGES]
    assert versions == sorted(versions)
    assert list(IMAGES.values()) == sorted(IMAGES.values())
