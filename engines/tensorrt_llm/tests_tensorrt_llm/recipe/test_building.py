"""Builds with the fake TensorRT-LLM: what lands where, and what fails how. The worker is a process where that matters,
else it runs in this one."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.builder.targets.folders import TOKENIZER_MODELS
from openai_bls.core.manifest import BuildError, LoraSettings, Manifest, load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.declaration import Queue
from openai_bls_tensorrt_llm.installed.interface import Flow
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.worker import main as worker_module
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.paths import ROOT
from tests.unit.builder.repositories import contents, leftovers, make_adapter
from tests_tensorrt_llm.engine.fake_support import patched
from tests_tensorrt_llm.recipe.build_support import H100, L4, Machine, make_checkpoint


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "source" / "tiny")


@pytest.fixture
def real_worker() -> None:
    """For tests whose worker is the process that it really is."""


@pytest.fixture(autouse=True)
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_worker" not in request.fixturenames:
        for module in ("building", "survey"):
            monkeypatch.setattr(f"openai_bls_tensorrt_llm.recipe.{module}.run_worker", run_worker_here)


def run_worker_here(arguments: Sequence[str], log: Path, on_line: Callable[[str], None], tick: object) -> int:
    output = io.StringIO()
    with patched(dict(os.environ)), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = worker_module.main(list(arguments))
        except Exception:
            traceback.print_exc()
            code = 1
    log.write_text(output.getvalue())
    for line in filter(str.strip, output.getvalue().replace("\r", "\n").split("\n")):
        on_line(line)
    return code


def run(source: Path, repository: Path, own: TensorRtLlmOptions | None = None, **options: object) -> Manifest:
    return build_with_lines(source, repository, own, **options)[0]


def build_with_lines(
    source: Path, repository: Path, own: TensorRtLlmOptions | None = None, **options: object
) -> tuple[Manifest, list[str]]:
    lines: list[str] = []
    own = own or TensorRtLlmOptions()
    if "flow" not in options:
        own = msgspec.structs.replace(own, flow=own.flow or "tensorrt")
    options.pop("flow", None)
    wanted = BuildOptions(str(source), repository, engine="tensorrt_llm", own=own)
    values = {name: getattr(wanted, name) for name in wanted.__struct_fields__} | options
    return build(BuildOptions(**values), lines.append), lines


def refusal(source: Path, repository: Path, own: TensorRtLlmOptions | None = None, **options: object) -> str:
    before = contents(repository)
    with pytest.raises(BuildError) as caught:
        run(source, repository, own, **options)
    assert "\n" not in str(caught.value)
    assert contents(repository) == before
    assert not leftovers(repository)
    return str(caught.value)


def record(manifest: Manifest) -> TensorRtLlmRecord:
    return TensorRtLlmRecord.of(manifest)


def version_dir(repository: Path) -> Path:
    return repository / "tensorrt_llm" / "1"


@pytest.mark.usefixtures("real_worker")
def test_an_engine(machine: Machine, source: Path, repository: Path) -> None:
    machine.install_gpus(H100, H100, H100, H100)
    own = TensorRtLlmOptions(
        tensor_parallel_size=2,
        max_input_len=700,
        max_output_len=100,
        max_num_tokens=4096,
        max_beam_width=2,
        quant="fp8",
        kv_cache_dtype="fp8",
        calib_dataset=str(source),
        calib_size=3,
        plugins={"gemm_plugin": "auto", "use_paged_context_fmha": "enable"},
        multiple_profiles=True,
        gather_logits=True,
    )
    manifest, lines = build_with_lines(source, repository, own, max_batch_size=5, dtype="bfloat16")
    folder = version_dir(repository)
    assert load_manifest(folder) == manifest
    assert (manifest.engine, manifest.model_name, manifest.max_model_len, manifest.max_batch_size) == (
        "tensorrt_llm", "tiny", 800, 5,
    )  # fmt: skip
    assert record(manifest) == TensorRtLlmRecord(
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
        data = (folder / "engine" / name).read_bytes()
        assert (expected.size, expected.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert manifest.builder["tensorrt_llm"] == "1.2.1"
    for model in TOKENIZER_MODELS:
        held = {path.name for path in (repository / model / "1" / "tokenizer").iterdir()}
        assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"} <= held
    assert not leftovers(repository)
    assert not any(machine.temporary.iterdir())
    assert "4 × NVIDIA H100 80GB HBM3" in lines[0]
    assert any("calibrating" in line for line in lines)
    assert any("building 0/2" in line for line in lines)
    (asked,) = machine.builds()
    config = asked["build_config"]
    assert isinstance(config, dict)
    assert (asked["tensor_parallel_size"], asked["dtype"]) == (2, "bfloat16")
    assert [config[f"max_{name}"] for name in ("batch_size", "input_len", "seq_len", "num_tokens", "beam_width")] == [
        5, 700, 800, 4096, 2,
    ]  # fmt: skip
    assert config["plugin_config"]["multiple_profiles"] is True


def test_settings_are_written_without_a_build(machine: Machine, source: Path, repository: Path) -> None:
    config = repository / "tensorrt_llm" / "config.pbtxt"
    committed = config.read_text()
    first = run(source, repository)
    assert config.read_text() == committed
    assert build_with_lines(source, repository)[1][-1].endswith("is up to date (--force builds it again)")
    settings = EngineSettings(
        kv_cache_free_gpu_mem_fraction=0.8, enable_chunked_context=True, enable_kv_cache_reuse=False
    )
    second, lines = build_with_lines(source, repository, TensorRtLlmOptions(settings=settings))
    assert "no rebuild" in lines[-1]
    assert (second.created, second.engine_files) == (first.created, first.engine_files)
    for line in (
        'parameters { key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.8" } }',
        'parameters { key: "enable_chunked_context" value { string_value: "true" } }',
        'parameters { key: "enable_kv_cache_reuse" value { string_value: "false" } }',
    ):
        assert line in config.read_text()
    assert "up to date" in build_with_lines(source, repository, TensorRtLlmOptions(settings=settings))[1][-1]
    assert run(source, repository) == first
    assert config.read_text() == committed
    assert len(machine.builds()) == 1


def test_settings_of_a_killed_run_are_written_again(
    machine: Machine, source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the options of the last build nor the new ones may then be taken for what is in place."""
    config = repository / "tensorrt_llm" / "config.pbtxt"
    committed = config.read_text()
    run(source, repository)
    new = TensorRtLlmOptions(settings=EngineSettings(enable_chunked_context=True))
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if target.name == "config.pbtxt":
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run(source, repository, new)
    assert config.read_text() != committed
    run(source, repository)
    assert config.read_text() == committed
    assert len(machine.builds()) == 1


def test_what_needs_another_build(machine: Machine, source: Path, repository: Path) -> None:
    own = TensorRtLlmOptions(max_num_tokens=2048)
    first = run(source, repository, own)
    machine.set(FAKE_TENSORRT_LLM_VERSION="1.1.0")
    assert record(run(source, repository, own)).version == "1.1.0"
    machine.install_gpus(L4)
    third = record(run(source, repository, own))
    assert (third.gpu, third.compute_capability) == ("NVIDIA L4", "8.9")
    assert len(machine.builds()) == 3
    (version_dir(repository) / "engine" / "rank0.engine").unlink()
    machine.set(FAKE_TENSORRT_LLM_VERSION="1.2.1")
    machine.install_gpus(H100)
    assert run(source, repository, own).source == first.source
    assert len(machine.builds()) == 4


def test_another_kind_of_engine_takes_its_place(machine: Machine, source: Path, repository: Path) -> None:
    """And leaves neither engine nor settings of the old one, which the new one would refuse."""
    committed = contents(repository)["tensorrt_llm/config.pbtxt"]
    settings = EngineSettings(max_tokens_in_paged_kv_cache=5000)
    run(source, repository, TensorRtLlmOptions(settings=settings))
    assert contents(repository)["tensorrt_llm/config.pbtxt"] != committed
    run(source, repository, engine="null")
    assert not (version_dir(repository) / "engine").exists()
    assert contents(repository)["tensorrt_llm/config.pbtxt"] == committed


@pytest.mark.parametrize(("version", "asked"), [("1.1.0", "pytorch"), ("1.2.1", None), ("1.3.0", None)])
def test_the_pytorch_flow(machine: Machine, source: Path, repository: Path, version: str, asked: Flow | None) -> None:
    machine.set(FAKE_TENSORRT_LLM_VERSION=version)
    (source / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    manifest = run(source, repository, TensorRtLlmOptions(flow=asked, max_input_len=100), flow=None)
    found = record(manifest)
    assert (found.flow, found.version, found.max_input_len, found.max_num_tokens) == ("pytorch", version, 100, 8192)
    assert set(manifest.files) == {
        "config.json", "generation_config.json", "hf_quant_config.json", "pytorch_model.bin",
    }  # fmt: skip
    assert not manifest.engine_files
    assert not (version_dir(repository) / "engine").exists()
    assert not machine.builds()


def test_extra_llm_api_options(machine: Machine, source: Path, repository: Path, tmp_path: Path) -> None:
    """Recorded as the version has them; the installed classes have the last word."""
    draft = make_checkpoint(tmp_path / "draft")
    speculative = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": str(draft)}
    own = TensorRtLlmOptions(extra_llm_api_options={"speculative_config": speculative, "print_iter_log": True})
    manifest, lines = build_with_lines(source, repository, own, flow=None)
    expected = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": str(draft)}
    assert record(manifest).extra_llm_api_options == {"speculative_config": expected, "print_iter_log": True}
    assert any("Eagle of TensorRT-LLM 1.2.1 decodes greedily: requests need temperature 0" in line for line in lines)
    assert "up to date" in build_with_lines(source, repository, own, flow=None)[1][-1]
    other = TensorRtLlmOptions(extra_llm_api_options={"print_iter_log": True})
    assert record(run(source, repository, other, flow=None)).extra_llm_api_options == {"print_iter_log": True}
    wrong = TensorRtLlmOptions(extra_llm_api_options={"print_iter_logs": True})
    for force in (False, True):
        said = refusal(source, repository, wrong, flow=None, force=force)
        assert said.startswith("print_iter_logs in --extra-llm-api-options: there is print_iter_log;")


def test_long_prompts(machine: Machine, source: Path, repository: Path) -> None:
    """Longer than a step, they are taken in over several; or they end there, and the build has said so."""
    own = TensorRtLlmOptions(max_num_tokens=512)
    manifest, lines = build_with_lines(source, repository, own)
    assert (record(manifest).max_input_len, record(manifest).max_num_tokens) == (2047, 512)
    assert any("the build turns enable_chunked_context on" in line for line in lines)
    config = repository / "tensorrt_llm" / "config.pbtxt"
    assert 'parameters { key: "enable_chunked_context" value { string_value: "true" } }' in config.read_text()
    off = TensorRtLlmOptions(max_num_tokens=512, settings=EngineSettings(enable_chunked_context=False))
    manifest, lines = build_with_lines(source, repository, off)
    assert record(manifest).max_input_len == 512
    assert any("note: prompts may have 512 tokens at most" in line for line in lines)
    asked = TensorRtLlmOptions(max_num_tokens=512, max_input_len=600, settings=off.settings)
    assert "--max-input-len 600 is more than the 512 tokens of one step" in refusal(source, repository, asked)


def test_a_chatglm_in_a_folder_of_another_name(machine: Machine, repository: Path, tmp_path: Path) -> None:
    """TensorRT-LLM goes by the name of the folder: it is given one that is right, and the folder's files."""
    chatglm = {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "padded_vocab_size": 65024}
    source = make_checkpoint(tmp_path / "source" / "mine", **chatglm)
    assert "does not tell which ChatGLM it is" in refusal(source, repository, trust_remote_code=True)
    (source / "tokenization_chatglm.py").write_text("SPECIAL = ['[gMASK]', 'sop']\n")
    run(source, repository, trust_remote_code=True)
    (asked,) = machine.builds()
    path = Path(str(asked["model"]))
    assert path.name == "chatglm2"
    assert path.parent == Path(str(asked["workspace"]))
    assert not leftovers(repository)


def test_adapters(machine: Machine, source: Path, repository: Path, tmp_path: Path) -> None:
    adapters = {"french": make_adapter(tmp_path / "a", 8), "legal": make_adapter(tmp_path / "b", 16, "mlp.up_proj")}
    lora, own = LoraOptions(adapters), TensorRtLlmOptions()
    found = run(source, repository, own, lora=lora).lora
    modules = ("attn_k", "attn_q", "attn_v", "mlp_gate")
    assert found == LoraSettings({"french": "lora/french", "legal": "lora/legal"}, 2, 16, modules)
    for folder in found.adapters.values():
        held = {path.name for path in (version_dir(repository) / folder).iterdir()}
        assert held == {"adapter_config.json", "adapter_model.safetensors"}
    (asked,) = machine.builds()
    config = asked["build_config"]
    assert isinstance(config, dict)
    assert config["plugin_config"]["lora_plugin"] == "auto"
    assert config["lora_config"]["lora_target_modules"] == list(modules)
    run(source, repository, own, lora=lora)
    make_adapter(tmp_path / "b", 15, "mlp.up_proj")
    run(source, repository, own, lora=lora)
    assert len(machine.builds()) == 2


@pytest.mark.parametrize(
    ("options", "changes", "said"),
    [
        ({"max_lora_rank": 4}, {}, "--max-lora-rank 4"),
        ({"max_loras": 1}, {}, "--max-loras 1"),
        ({}, {"modules_to_save": ["lm_head"]}, "--lora-dir one: modules_to_save"),
        ({}, {"alpha_pattern": {"q_proj": 1}}, "--lora-dir: alpha_pattern"),
        ({}, {"module": "attn.c_attn"}, "--lora-dir: the adapter one changes c_attn"),
    ],
)
def test_adapters_that_tensorrt_llm_would_not_apply_in_full(
    machine: Machine,
    source: Path,
    repository: Path,
    tmp_path: Path,
    options: dict[str, int],
    changes: dict[str, Any],
    said: str,
) -> None:
    adapters = {"one": make_adapter(tmp_path / "one", **changes), "other": make_adapter(tmp_path / "other")}
    lora = LoraOptions(adapters, **options)
    assert refusal(source, repository, TensorRtLlmOptions(flow="pytorch"), lora=lora).startswith(said)


def test_a_single_adapter_of_other_modules_is_left_to_tensorrt_llm(
    machine: Machine, source: Path, repository: Path, tmp_path: Path
) -> None:
    lora = LoraOptions({"one": make_adapter(tmp_path / "one", module="attn.c_attn")})
    assert run(source, repository, TensorRtLlmOptions(), lora=lora).lora.target_modules == ()
    said = refusal(source, repository, TensorRtLlmOptions(), lora=msgspec.structs.replace(lora, max_loras=2))
    assert "the adapter one changes c_attn" in said


def test_room_for_adapters(machine: Machine, source: Path, repository: Path) -> None:
    room = LoraOptions(max_loras=3)
    found = run(source, repository, TensorRtLlmOptions(), lora=room).lora
    assert (found.max_loras, found.max_lora_rank, len(found.target_modules)) == (3, 16, 7)
    said = refusal(source, repository, TensorRtLlmOptions(backend="cpp"), lora=room)
    assert said == "--max-loras is for --backend python: the C++ backend gets adapters from its clients"


def test_the_cpp_backend(machine: Machine, source: Path, repository: Path) -> None:
    settings = EngineSettings(batch_scheduler_policy="max_utilization", guided_decoding_backend="xgrammar")
    own = TensorRtLlmOptions(
        backend="cpp", settings=settings, queue=Queue(500, 20), cpp_parameters={"decoding_mode": "top_k_top_p"}
    )
    manifest = run(source, repository, own, max_batch_size=7)
    assert record(manifest).backend == "cpp"
    text = (repository / "tensorrt_llm" / "config.pbtxt").read_text()
    engine = version_dir(repository).absolute() / "engine"
    for part in (
        'backend: "tensorrtllm"',
        "max_batch_size: 7",
        "max_queue_delay_microseconds: 500",
        f'key: "gpt_model_path" value {{ string_value: "{engine}" }}',
        'key: "batch_scheduler_policy" value { string_value: "max_utilization" }',
        'key: "decoding_mode" value { string_value: "top_k_top_p" }',
    ):
        assert part in text
    assert "${" not in text
    vocabulary = json.loads((engine / "xgrammar_tokenizer_info.json").read_text())
    assert vocabulary["stop_token_ids"]
    assert "decode_context" not in (repository / "ensemble" / "config.pbtxt").read_text()
    # And back.
    run(source, repository)
    for model in ("tensorrt_llm", "ensemble", "tensorrt_llm_bls"):
        committed = (ROOT / "model_repository" / model / "config.pbtxt").read_text()
        assert (repository / model / "config.pbtxt").read_text() == committed


def test_settings_of_a_further_engine(machine: Machine, source: Path, repository: Path) -> None:
    for fraction in (0.4, 0.5):
        settings = EngineSettings(kv_cache_free_gpu_mem_fraction=fraction)
        run(source, repository, TensorRtLlmOptions(settings=settings), name="small")
        text = (repository / "tensorrt_llm_small" / "config.pbtxt").read_text()
        assert f'key: "kv_cache_free_gpu_mem_fraction" value {{ string_value: "{fraction}" }}' in text
        assert "`build/engine.py --name small`" in text
    assert len(machine.builds()) == 1


@pytest.mark.usefixtures("real_worker")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("build:kill", "for want of host memory: "),
        ("build:tensorrt-out-of-memory", "GPU memory ran out: give a larger --tp-size, a smaller --max-num-tokens"),
        ("build:architecture", "does not support the model's architecture Qwen2ForCausalLM in this flow"),
        ("load:crash", "the build crashed (SIGABRT)"),
        ("import:library", "TensorRT-LLM cannot be used here: TensorRT-LLM cannot be imported: libnvinfer.so.10"),
    ],
)
def test_failures(machine: Machine, source: Path, repository: Path, what: str, said: str) -> None:
    """Each leaves the last good engine, says what it was, and where the log is."""
    run(source, repository, engine="null")
    machine.set(FAKE_TENSORRT_LLM_FAIL=what)
    sentence = refusal(source, repository)
    assert said in sentence
    log = Path(sentence.rpartition("(log: ")[2].rstrip(")"))
    assert log.parent == machine.temporary
    assert "TensorRT-LLM" in log.read_text()
    assert load_manifest(version_dir(repository)).engine == "null"


def test_a_workspace(machine: Machine, source: Path, repository: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "elsewhere"
    run(source, repository, TensorRtLlmOptions(workspace=workspace))
    assert list(workspace.iterdir()) == []
    (asked,) = machine.builds()
    assert str(asked["workspace"]).startswith(str(workspace))
    own = TensorRtLlmOptions(workspace=workspace, keep_workspace=True)
    _, lines = build_with_lines(source, repository, own, force=True)
    (kept,) = workspace.iterdir()
    assert any(line.endswith(f"the workspace stays at {kept}") for line in lines)


def test_what_is_seen_before_the_build(
    machine: Machine, source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = TensorRtLlmOptions(tensor_parallel_size=2)
    assert "an engine of 2 ranks" in refusal(source, repository, two)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert "the disk is too small" in refusal(source, repository)


def test_models_and_versions_that_do_not_go(machine: Machine, repository: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", architectures=["MambaForCausalLM"])
    assert "the installed TensorRT-LLM 1.2 has no MambaForCausalLM in --flow tensorrt: use --engine" in refusal(
        other, repository
    )
    foreign = make_checkpoint(tmp_path / "foreign", architectures=["BaichuanForCausalLM"])
    assert "pass --trust-remote-code" in refusal(foreign, repository, flow=None)
    source = make_checkpoint(tmp_path / "tiny")
    machine.set(FAKE_TENSORRT_LLM_VERSION="1.3.0")
    assert "TensorRT-LLM 1.3" in refusal(source, repository, TensorRtLlmOptions(flow="tensorrt"))
    machine.set(FAKE_TENSORRT_LLM_VERSION="1.2.1")
    (source / "pytorch_model.bin").unlink()
    assert "has no weights" in refusal(source, repository)


def test_a_build_in_spite_of_the_estimate(machine: Machine, source: Path, repository: Path) -> None:
    machine.install_gpus("NVIDIA Tiny, 1100, 9.0")
    assert "does not fit: " in refusal(source, repository)
    _, lines = build_with_lines(source, repository, force=True)
    assert any(line.startswith("in spite of --force: does not fit") for line in lines)


def test_options_that_force_does_not_change(machine: Machine, source: Path, repository: Path) -> None:
    """The engine would be built, and not load, or be another than was asked for."""
    grammars = TensorRtLlmOptions(settings=EngineSettings(guided_decoding_backend="llguidance"))
    for own, said in (
        (grammars, "--guided-decoding-backend llguidance is not for TensorRT engines"),
        (TensorRtLlmOptions(calib_size=7), "--calib-size 7 has no effect here"),
        (TensorRtLlmOptions(workers=3), "--workers 3 cannot be had"),
    ):
        assert said in refusal(source, repository, own)
        assert said in refusal(source, repository, own, force=True)
    assert not machine.builds()
    run(source, repository, TensorRtLlmOptions(flow="pytorch", settings=grammars.settings))


def test_names_of_adapters_that_are_taken(machine: Machine, source: Path, repository: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter")

    own = TensorRtLlmOptions(flow="pytorch")

    def with_adapter(name: str) -> dict[str, Any]:
        return {"lora": LoraOptions({name: folder})}

    said = refusal(source, repository, own, **with_adapter("tiny"))
    assert said.startswith("'tiny' is the engine's own name and an adapter's: give the adapter another")
    # An alias of this engine.
    assert "'openai_bls' is a name of the engine in tensorrt_llm" in refusal(
        source, repository, own, **with_adapter("openai_bls")
    )
    run(source, repository, own, **with_adapter("french"))
    further = {"name": "small", "served_model_name": "small"}
    for name in ("french", "tiny", "openai_bls"):
        said = refusal(source, repository, own, **with_adapter(name), **further)
        assert said.startswith(f"{name!r} is a name of the engine in tensorrt_llm already: give the adapter another")
    said = refusal(source, repository, own, name="small", served_model_name="french")
    assert said.startswith("'french' is a name of the engine in tensorrt_llm already: give another with --served-model")
    run(source, repository, own, **with_adapter("german"), **further)
    assert "in tensorrt_llm_small already" in refusal(source, repository, own, **with_adapter("german"))
    # Its own, again, and the name that its model had.
    run(source, repository, own, **with_adapter("french"), force=True)
    run(source, repository, own, **with_adapter("tiny"), served_model_name="other")


def test_settings_that_somebody_changed(machine: Machine, source: Path, repository: Path) -> None:
    """They stay, and a build with the options of the last one says so."""
    own = TensorRtLlmOptions(settings=EngineSettings(kv_cache_free_gpu_mem_fraction=0.6))
    assert not any("was changed" in line for line in build_with_lines(source, repository, own)[1])
    assert not any("was changed" in line for line in build_with_lines(source, repository, own)[1])
    assert configure(repository, ["tensorrt_llm.kv_cache_free_gpu_mem_fraction=0.3"])
    config = repository / "tensorrt_llm" / "config.pbtxt"
    edited = config.read_text()
    for force in (False, True):
        lines = build_with_lines(source, repository, own, force=force)[1]
        (said,) = [line for line in lines if "was changed" in line]
        assert said.endswith("openai-bls render --set tensorrt_llm.NAME=VALUE)")
        assert config.read_text() == edited
    small = {"name": "small", "served_model_name": "small"}
    again = run(source, repository, own, **small)
    assert configure(repository, ["tensorrt_llm_small.kv_cache_free_gpu_mem_fraction=0.3"])
    manifest, lines = build_with_lines(source, repository, own, **small)
    assert manifest == again
    assert "--set tensorrt_llm_small.NAME=VALUE" in lines[-2]


def test_without_a_gpu(machine: Machine, source: Path, repository: Path) -> None:
    machine.install_gpus()
    assert refusal(source, repository).startswith("there is no GPU here, and a TensorRT engine is built on one of the")
    found = record(run(source, repository, TensorRtLlmOptions(flow="pytorch")))
    assert (found.gpu, found.compute_capability) == ("", "")
