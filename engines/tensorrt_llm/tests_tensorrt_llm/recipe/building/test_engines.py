"""Builds with the fake TensorRT-LLM: what lands where, and what fails how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from openai_bls.builder.targets.folders import TOKENIZER_MODELS
from openai_bls.core.manifest import load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import Flow
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.unit.builder.repositories import leftovers
from tests_tensorrt_llm.recipe.build_support import H100, L4, Bench, make_checkpoint


@pytest.mark.usefixtures("real_worker")
def test_an_engine(bench: Bench) -> None:
    bench.machine.install_gpus(H100, H100, H100, H100)
    own = TensorRtLlmOptions(
        tensor_parallel_size=2,
        max_input_len=700,
        max_output_len=100,
        max_num_tokens=4096,
        max_beam_width=2,
        quant="fp8",
        kv_cache_dtype="fp8",
        calib_dataset=str(bench.source),
        calib_size=3,
        plugins={"gemm_plugin": "auto", "use_paged_context_fmha": "enable"},
        multiple_profiles=True,
        gather_logits=True,
    )
    manifest, lines = bench.build(own, max_batch_size=5, dtype="bfloat16")
    assert load_manifest(bench.folder) == manifest
    assert (manifest.engine, manifest.model_name, manifest.max_model_len, manifest.max_batch_size) == (
        "tensorrt_llm", "tiny", 800, 5,
    )  # fmt: skip
    assert bench.record_of(manifest) == TensorRtLlmRecord(
        version="1.2.1",
        gpu="NVIDIA H100 80GB HBM3",
        compute_capability="9.0",
        tensor_parallel_size=2,
        quant="fp8",
        kv_cache_dtype="fp8",
        max_input_len=700,
        max_num_tokens=4096,
        max_beam_width=2,
        gather_logits=True,
        plugins={"gemm_plugin": "auto", "use_paged_context_fmha": "enable"},
    )
    # The weights are in the engine.
    assert set(manifest.files) == {"config.json", "generation_config.json"}
    assert {"config.json", "rank0.engine", "rank1.engine"} <= set(manifest.engine_files)
    for name, expected in manifest.engine_files.items():
        data = (bench.folder / "engine" / name).read_bytes()
        assert (expected.size, expected.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert manifest.builder["tensorrt_llm"] == "1.2.1"
    for model in TOKENIZER_MODELS:
        held = {path.name for path in (bench.repository / model / "1" / "tokenizer").iterdir()}
        assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"} <= held
    assert not leftovers(bench.repository)
    assert not any(bench.machine.temporary.iterdir())
    assert "4 × NVIDIA H100 80GB HBM3" in lines[0]
    assert any("calibrating" in line for line in lines)
    assert any("building 0/2" in line for line in lines)
    (asked,) = bench.machine.builds()
    config = asked["build_config"]
    assert (asked["tensor_parallel_size"], asked["dtype"]) == (2, "bfloat16")
    assert [config[f"max_{name}"] for name in ("batch_size", "input_len", "seq_len", "num_tokens", "beam_width")] == [
        5, 700, 800, 4096, 2,
    ]  # fmt: skip
    assert config["plugin_config"]["multiple_profiles"] is True


def test_what_needs_another_build(bench: Bench) -> None:
    own = TensorRtLlmOptions(max_num_tokens=2048)
    first = bench.run(own)
    bench.machine.set(FAKE_TENSORRT_LLM_VERSION="1.1.0")
    assert bench.record(own).version == "1.1.0"
    bench.machine.install_gpus(L4)
    third = bench.record(own)
    assert (third.gpu, third.compute_capability) == ("NVIDIA L4", "8.9")
    assert len(bench.machine.builds()) == 3
    (bench.folder / "engine" / "rank0.engine").unlink()
    bench.machine.set(FAKE_TENSORRT_LLM_VERSION="1.2.1")
    bench.machine.install_gpus(H100)
    assert bench.run(own).source == first.source
    assert len(bench.machine.builds()) == 4


@pytest.mark.parametrize(("version", "asked"), [("1.1.0", "pytorch"), ("1.2.1", None), ("1.3.0", None)])
def test_the_pytorch_flow(bench: Bench, version: str, asked: Flow | None) -> None:
    bench.machine.set(FAKE_TENSORRT_LLM_VERSION=version)
    (bench.source / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    manifest = bench.run(TensorRtLlmOptions(flow=asked, max_input_len=100), flow=None)
    found = bench.record_of(manifest)
    assert (found.flow, found.version, found.max_input_len, found.max_num_tokens) == ("pytorch", version, 100, 8192)
    assert set(manifest.files) == {
        "config.json", "generation_config.json", "hf_quant_config.json", "pytorch_model.bin",
    }  # fmt: skip
    assert not manifest.engine_files
    assert not (bench.folder / "engine").exists()
    assert not bench.machine.builds()


def test_extra_llm_api_options(bench: Bench, tmp_path: Path) -> None:
    """Recorded as the version has them; the installed classes have the last word."""
    draft = make_checkpoint(tmp_path / "draft")
    speculative = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": str(draft)}
    own = TensorRtLlmOptions(extra_llm_api_options={"speculative_config": speculative, "print_iter_log": True})
    manifest, lines = bench.build(own, flow=None)
    expected = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": str(draft)}
    found = bench.record_of(manifest).extra_llm_api_options
    assert found == {"speculative_config": expected, "print_iter_log": True}
    assert any("Eagle of TensorRT-LLM 1.2.1 decodes greedily" in line for line in lines)
    assert "up to date" in bench.build(own, flow=None)[1][-1]
    other = TensorRtLlmOptions(extra_llm_api_options={"print_iter_log": True})
    assert bench.record(other, flow=None).extra_llm_api_options == {"print_iter_log": True}
    wrong = TensorRtLlmOptions(extra_llm_api_options={"print_iter_logs": True})
    for force in (False, True):
        said = bench.refusal(wrong, flow=None, force=force)
        assert said.startswith("print_iter_logs in --extra-llm-api-options: there is print_iter_log;")


def test_a_chatglm_in_a_folder_of_another_name(bench: Bench, tmp_path: Path) -> None:
    """TensorRT-LLM goes by the name of the folder: it is given one that is right, and the folder's files."""
    chatglm = {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "padded_vocab_size": 65024}
    source = make_checkpoint(tmp_path / "source" / "mine", **chatglm)
    assert "which ChatGLM" in bench.refusal(source=source, trust_remote_code=True)
    (source / "tokenization_chatglm.py").write_text("SPECIAL = ['[gMASK]', 'sop']\n")
    bench.run(source=source, trust_remote_code=True)
    (asked,) = bench.machine.builds()
    path = Path(asked["model"])
    assert (path.name, path.parent) == ("chatglm2", Path(asked["workspace"]))
    assert not leftovers(bench.repository)


@pytest.mark.usefixtures("real_worker")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("build:kill", "host memory: "),
        ("build:tensorrt-out-of-memory", "GPU memory ran out: give a larger --tp-size, a smaller --max-num-tokens"),
        ("build:architecture", "architecture Qwen2ForCausalLM "),
        ("load:crash", "(SIGABRT)"),
        ("import:library", "libnvinfer.so.10"),
    ],
)
def test_failures(bench: Bench, what: str, said: str) -> None:
    """Each leaves the last good engine, says what it was, and where the log is."""
    bench.run(engine="null")
    bench.machine.set(FAKE_TENSORRT_LLM_FAIL=what)
    sentence = bench.refusal()
    assert said in sentence
    log = Path(sentence.rpartition("(log: ")[2].rstrip(")"))
    assert log.parent == bench.machine.temporary
    assert "TensorRT-LLM" in log.read_text()
    assert load_manifest(bench.folder).engine == "null"


def test_a_workspace(bench: Bench, tmp_path: Path) -> None:
    workspace = tmp_path / "elsewhere"
    bench.run(TensorRtLlmOptions(workspace=workspace))
    assert list(workspace.iterdir()) == []
    (asked,) = bench.machine.builds()
    assert str(asked["workspace"]).startswith(str(workspace))
    _, lines = bench.build(TensorRtLlmOptions(workspace=workspace, keep_workspace=True), force=True)
    (kept,) = workspace.iterdir()
    assert any(line.endswith(f" {kept}") for line in lines)


def test_what_is_seen_before_the_build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "2 ranks" in bench.refusal(TensorRtLlmOptions(tensor_parallel_size=2))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert "the disk" in bench.refusal()


def test_models_and_versions_that_do_not_go(bench: Bench, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", architectures=["MambaForCausalLM"])
    assert "1.2 has no MambaForCausalLM in --flow tensorrt: use --engine" in bench.refusal(source=other)
    foreign = make_checkpoint(tmp_path / "foreign", architectures=["BaichuanForCausalLM"])
    assert "--trust-remote-code" in bench.refusal(source=foreign, flow=None)
    bench.machine.set(FAKE_TENSORRT_LLM_VERSION="1.3.0")
    assert "TensorRT-LLM 1.3" in bench.refusal(TensorRtLlmOptions(flow="tensorrt"))
    bench.machine.set(FAKE_TENSORRT_LLM_VERSION="1.2.1")
    (bench.source / "pytorch_model.bin").unlink()
    assert "has no weights" in bench.refusal()


def test_a_build_in_spite_of_the_estimate(bench: Bench) -> None:
    bench.machine.install_gpus("NVIDIA Tiny, 1100, 9.0")
    assert "does not fit: " in bench.refusal()
    _, lines = bench.build(force=True)
    assert any(line.startswith("in spite of --force: does not fit") for line in lines)


def test_options_that_force_does_not_change(bench: Bench) -> None:
    """The engine would be built, and not load, or be another than was asked for."""
    grammars = TensorRtLlmOptions(settings=EngineSettings(guided_decoding_backend="llguidance"))
    for own, said in (
        (grammars, "--guided-decoding-backend llguidance is not for TensorRT engines"),
        (TensorRtLlmOptions(calib_size=7), "--calib-size 7 "),
        (TensorRtLlmOptions(workers=3), "--workers 3 "),
    ):
        assert said in bench.refusal(own)
        assert said in bench.refusal(own, force=True)
    assert not bench.machine.builds()
    bench.run(TensorRtLlmOptions(flow="pytorch", settings=grammars.settings))


def test_without_a_gpu(bench: Bench) -> None:
    bench.machine.install_gpus()
    assert bench.refusal().startswith("there is no GPU here")
    found = bench.record(TensorRtLlmOptions(flow="pytorch"))
    assert (found.gpu, found.compute_capability) == ("", "")
