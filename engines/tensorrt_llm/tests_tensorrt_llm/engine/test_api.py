"""Every call into TensorRT-LLM, against a fake that takes what the recorded tables say."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from openai_bls.core.engine_types import Grammar, SamplingParams
from openai_bls.core.machine import nvidia_smi
from openai_bls.core.manifest import EngineLoadError
from openai_bls_tensorrt_llm.installed import api
from openai_bls_tensorrt_llm.installed.api import Api
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, LlmOptions, LoraAdapter, Sampling
from tests.paths import DEMO
from tests_tensorrt_llm.engine.fake_support import (
    VERSIONS,
    environment,
    in_process,
    on_loop,
    patched,
    small_checkpoint,
)

END = 9
FLOWS = [
    (version, flow)
    for version in VERSIONS
    for flow in ("tensorrt", "pytorch")
    if (version, flow) != ("0.20.0", "pytorch")
]
GREEDY = SamplingParams(temperature=0)
PLAIN = Sampling(max_tokens=8, end_id=END, pad_id=0, params=GREEDY, vocab_size=20)


class World:
    """A checkpoint, the fake over it, and what was called of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = small_checkpoint(folder / "checkpoint")
        self.log = folder / "calls"

    def calls(self, name: str) -> list[dict[str, Any]]:
        """Arguments of the calls of this name so far."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [found for line in lines if (found := json.loads(line))["call"] == name]

    def api(self, version: str = "1.2.1", **values: str) -> Any:
        """A context with `api.installed()`."""
        return in_process(version, **{"tokens": "5,6,7", "calls": str(self.log)} | values)

    def spec(self, **values: Any) -> BuildSpec:
        """A build of a small engine."""
        output, workspace = self.folder / "engine", self.folder / "workspace"
        workspace.mkdir(exist_ok=True)
        fields = {"max_batch_size": 4, "max_input_len": 16, "max_seq_len": 32, "max_num_tokens": 64}
        return BuildSpec(self.checkpoint, output, workspace, **fields | values)

    def options(self, installed: Api, flow: str, **values: Any) -> LlmOptions:
        """Of a model that is ready to be opened; builds the engine first where one is needed."""
        if flow == "tensorrt":
            installed.build(self.spec(gather_logits=True))
            values = {"gather_generation_logits": True} | values
        model = self.folder / "engine" if flow == "tensorrt" else self.checkpoint
        return LlmOptions(model, flow, max_batch_size=4, max_model_len=32, **values)  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def asking(**values: Any) -> Sampling:
    """`PLAIN` with other values, also of `SamplingParams`."""
    params = {name: values.pop(name) for name in SamplingParams.__struct_fields__ if name in values}
    return replace(PLAIN, params=replace(GREEDY, **params), **values)


def ask(installed: Api, llm: Any, sampling: Sampling, lora: LoraAdapter | None = None) -> Any:
    """The first output of a request, when it is done."""

    async def run() -> Any:
        output = installed.generate(llm, [1, 2], sampling, lora)
        async for _ in output:
            pass
        assert output.finished
        return output.outputs[0]

    return on_loop(run())


@pytest.mark.parametrize(
    ("version", "values", "told"),
    [
        ("0.19.0", {}, "0.19.0 is too old: 0.20 or later is needed"),
        ("0.10.0", {}, "too old"),
        ("1.2.1", {"fail": "import:missing"}, "not installed in this Python"),
        ("1.2.1", {"fail": "import:library"}, "cannot be imported: libnvinfer.so.10"),
        ("nonsense", {}, "says that it is version 'nonsense'"),
    ],
)
def test_not_installed(version: str, values: dict[str, str], told: str) -> None:
    with patched(environment(version, **values)), pytest.raises(EngineLoadError, match=told):
        api.installed()


def test_no_package_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineLoadError, match="not installed in this Python: use an image tritonserver:TAG-trtllm"):
        api.installed()


def test_what_mpirun_left_is_gone_before_the_import() -> None:
    with patched(environment(OMPI_COMM_WORLD_RANK="0", PMIX_RANK="0", PMI_SIZE="1", OMPI_MCA_BTL="tcp", OTHER="1")):
        api.installed()
        assert [name for name in os.environ if name.startswith(("OMPI_", "PMIX_", "PMI_"))] == ["OMPI_MCA_BTL"]
        assert os.environ["OTHER"] == "1"


@pytest.mark.parametrize(("version", "flow"), FLOWS)
def test_a_request(version: str, flow: str, world: World) -> None:
    with world.api(version) as installed:
        llm = installed.open(world.options(installed, flow))
        try:
            found = ask(installed, llm, PLAIN)
        finally:
            llm.shutdown()
    tokens = [5, 6, 7] if flow == "tensorrt" else [5, 6, 7, END]
    assert (list(found.token_ids), found.finish_reason) == (tokens, "stop")
    (call,) = world.calls("generate_async")
    assert call["streaming"] is True
    assert call["detokenize"] is False
    assert call["top_k"] == 1
    assert "temperature" not in call
    assert len(world.calls("shutdown")) == (2 if flow == "tensorrt" else 1)


def test_reuse_and_chunks_are_left_to_the_model(world: World) -> None:
    """Unless they are asked for: later versions turn reuse off by themselves, where it is not set."""
    with world.api() as installed:
        options = world.options(installed, "pytorch")
        found = installed._arguments(options)
        assert "enable_chunked_prefill" not in found
        assert "enable_block_reuse" not in found["kv_cache_config"].model_fields_set
        asked = msgspec.structs.replace(options, enable_kv_cache_reuse=True)
        assert installed._arguments(asked)["kv_cache_config"].model_fields_set >= {"enable_block_reuse"}


@pytest.mark.parametrize(("version", "flow"), FLOWS)
def test_every_option_of_loading(version: str, flow: str, world: World, tokenizer_dir: Path) -> None:
    with world.api(version) as installed:
        options = world.options(
            installed,
            flow,
            max_num_tokens=32,
            tensor_parallel_size=1,
            tokenizer=tokenizer_dir,
            kv_cache_free_gpu_mem_fraction=0.5,
            max_tokens_in_paged_kv_cache=1024,
            kv_cache_host_memory_bytes=1 << 20,
            enable_kv_cache_reuse=False,
            max_attention_window_size=(16, 32),
            enable_chunked_context=True,
            batch_scheduler_policy="max_utilization",
        )
        installed.open(options).shutdown()
    (call,) = world.calls(f"LLM.{flow}")[-1:]
    assert call["kv_cache_config"] == call["kv_cache_config"] | {
        "enable_block_reuse": False,
        "free_gpu_memory_fraction": 0.5,
        "max_tokens": 1024,
        "host_cache_size": 1 << 20,
        "max_attention_window": [16, 32],
    }
    assert call["scheduler_config"]["capacity_scheduler_policy"] == "MAX_UTILIZATION"
    assert call["enable_chunked_prefill"] is True
    assert call["max_num_tokens"] == 32
    assert call["skip_tokenizer_init"] is False
    assert call["tokenizer"] == str(tokenizer_dir)
    assert call.get("fail_fast_on_attention_window_too_large", True) is True
    if flow == "pytorch":
        assert call["max_seq_len"] == 32
        sampler = {"1.0.0": ("enable_trtllm_sampler", True)}.get(version, ("sampler_type", "TRTLLMSampler"))
        assert call[sampler[0]] == sampler[1]


def test_without_a_tokenizer_none_is_looked_for(world: World) -> None:
    with world.api() as installed:
        installed.open(world.options(installed, "pytorch")).shutdown()
    assert world.calls("LLM.pytorch")[0]["skip_tokenizer_init"] is True


@pytest.mark.parametrize(
    ("version", "flow", "values", "told"),
    [
        ("0.20.0", "pytorch", {}, "by PyTorch as an experiment only"),
        ("1.3.0rc21", "tensorrt", {}, "no TensorRT engines any more"),
        ("1.2.1", "tensorrt", {"guided_decoding_backend": "llguidance"}, "llguidance is not for TensorRT engines"),
        ("1.2.1", "pytorch", {"guided_decoding_backend": "xgrammar"}, "needs a tokenizer"),
        ("1.2.1", "pytorch", {"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8 is not one"),
        ("1.2.1", "pytorch", {"kv_cache_dtype": "nvfp4"}, "takes: auto, fp8"),
    ],
)
def test_what_cannot_be_loaded(version: str, flow: str, values: dict[str, Any], told: str, world: World) -> None:
    with world.api(version) as installed:
        options = LlmOptions(world.checkpoint, flow, 4, 32, **values)  # type: ignore[arg-type]
        with pytest.raises(EngineLoadError, match=told):
            installed.open(options)
    assert world.calls(f"LLM.{flow}") == []


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ("1.2.1", set()),
        ("1.3.0rc21", {"seed", "repetition_penalty", "presence_penalty", "frequency_penalty"}),
        ("1.3.0rc24", {"seed"}),
        ("1.3.0rc25.post1", {"seed"}),
        ("1.4.0rc4", {"seed"}),
    ],
)
def test_requests_name_what_the_sampler_honours(version: str, missing: set[str], world: World) -> None:
    """What it would pass over is refused by name: the engine's fields are all that the server lets through."""
    with world.api(version) as installed:
        found = set(installed.supported(world.options(installed, "pytorch")))
    asked = {"seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_tokens"}
    assert asked - found == missing


@pytest.mark.parametrize("version", ["1.3.0rc26", "1.4.0rc1"])
def test_a_later_version_serves_checkpoints(version: str, world: World) -> None:
    with world.api(version) as installed:
        options = world.options(installed, "pytorch")
        llm = installed.open(options)
        assert list(ask(installed, llm, replace(PLAIN, logprobs=5)).token_ids) == [5, 6, 7, END]
        llm.shutdown()
        with pytest.raises(EngineLoadError, match="no TensorRT engines any more"):
            installed.build(world.spec())
    # 1.4 has it no more, and refuses all but the default.
    assert world.calls("LLM.pytorch")[0].get("sampler_type", "auto") == "auto"


@pytest.mark.parametrize(("version", "flow"), FLOWS)
def test_every_field_of_a_request(version: str, flow: str, world: World) -> None:
    sampling = Sampling(
        max_tokens=4,
        end_id=END,
        pad_id=3,
        stop_token_ids=(8, 4),
        bad_words=((11,), (12, 13)),
        min_tokens=2,
        params=SamplingParams(
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            min_p=0.1,
            seed=7,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={2: 1.0},
        ),
        vocab_size=20,
        logprobs=0 if flow == "tensorrt" else None,
    )
    with world.api(version) as installed:
        llm = installed.open(world.options(installed, flow))
        found = ask(installed, llm, sampling)
        llm.shutdown()
    (call,) = world.calls("generate_async")
    expected = {
        "max_tokens": 4,
        "end_id": END,
        "pad_id": 3,
        "ignore_eos": False,
        "stop_token_ids": [8, 4],
        "bad_token_ids": [11],
        "_bad_word_ids": [[12, 13]],
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 7,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "embedding_bias": "Tensor",
        "prompt_token_ids": [1, 2],
        "include_stop_str_in_output": False,
    } | ({"logprobs": 1} if flow == "tensorrt" else {})
    assert call == call | expected
    # Of the newest response alone, which has nothing but the end.
    assert len(found.logprobs) == (len(found.token_ids) if flow == "tensorrt" and version != "0.20.0" else 0)


CHANGES: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {2: 1.0},
    "bad_words": ((11,),),
    "min_tokens": 1,
    "temperature": 0.5,
}


@pytest.mark.parametrize("field", CHANGES)
def test_log_probabilities_of_the_models_own(field: str, world: World) -> None:
    """The C++ sampler has those that a token was drawn by."""
    sampling = asking(logprobs=0, **{field: CHANGES[field]})
    with world.api() as installed:
        llm = installed.open(world.options(installed, "pytorch"))
        with pytest.raises(ValueError, match=rf"^logprobs with {field} is not supported"):
            ask(installed, llm, sampling)
        for temperature in (0.0, 1.0):
            found = ask(installed, llm, asking(logprobs=0, temperature=temperature))
            assert len(found.logprobs) == len(found.token_ids)
        llm.shutdown()
        engine = installed.open(world.options(installed, "tensorrt"))
        assert ask(installed, engine, sampling).logprobs
        engine.shutdown()
    with world.api("1.3.0rc26") as installed:
        llm = installed.open(world.options(installed, "pytorch"))
        assert ask(installed, llm, sampling).logprobs
        llm.shutdown()


def test_nothing_ends_it_but_the_length(world: World) -> None:
    with world.api() as installed:
        llm = installed.open(world.options(installed, "pytorch"))
        found = ask(installed, llm, replace(PLAIN, end_id=None, pad_id=None))
        llm.shutdown()
    assert (len(found.token_ids), found.finish_reason) == (8, "length")
    assert world.calls("generate_async")[0]["ignore_eos"] is True


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc26"])
def test_requests_without_a_seed_differ(version: str, world: World) -> None:
    with world.api(version) as installed:
        llm = installed.open(world.options(installed, "pytorch"))
        for _ in range(3):
            ask(installed, llm, asking(temperature=1.0))
        llm.shutdown()
    assert len({call["seed"] for call in world.calls("generate_async")}) == 3
    assert {call["top_p"] for call in world.calls("generate_async")} == {1.0}


@pytest.mark.parametrize(
    ("version", "flow", "values", "told"),
    [
        ("1.2.1", "tensorrt", {"top_k": 1025, "temperature": 1.0, "vocab_size": 2000}, "^top_k: at most 1024"),
        ("1.2.1", "tensorrt", {"logprobs": 21}, "^logprobs: at most 20"),
        ("1.2.1", "pytorch", {"logprobs": 2}, "^logprobs: at most 1 with TensorRT-LLM 1.2.1"),
        ("1.2.1", "tensorrt", {"logit_bias": {20: 1.0}}, "^logit_bias: there is no token 20"),
        ("1.2.1", "tensorrt", {"grammar": Grammar("regex", "a")}, "^grammar: .* loaded with: none"),
    ],
)
def test_what_cannot_be_asked(version: str, flow: str, values: dict[str, Any], told: str, world: World) -> None:
    with world.api(version) as installed:
        llm = installed.open(world.options(installed, flow))
        with pytest.raises(ValueError, match=told):
            ask(installed, llm, asking(**values))
        llm.shutdown()


def test_log_probabilities_need_gathered_logits(world: World) -> None:
    with world.api() as installed:
        options = world.options(installed, "tensorrt", gather_generation_logits=False)
        assert "logprobs" not in installed.supported(options)
        llm = installed.open(options)
        with pytest.raises(ValueError, match=r"^logprobs: this engine was built without --gather-logits"):
            ask(installed, llm, replace(PLAIN, logprobs=1))
        llm.shutdown()


@pytest.mark.parametrize(
    ("version", "flow", "backend", "kinds"),
    [
        ("0.20.0", "tensorrt", "xgrammar", ("json_schema", "regex", "ebnf")),
        ("1.2.1", "tensorrt", "xgrammar", ("json_schema", "regex", "ebnf")),
        ("1.1.0", "pytorch", "xgrammar", ("json_schema", "regex", "ebnf")),
        ("1.2.1", "pytorch", "xgrammar", ("json_schema", "regex", "ebnf", "structural_tag")),
        ("1.2.1", "pytorch", "llguidance", ("json_schema", "regex", "lark")),
    ],
)
def test_grammars(version: str, flow: str, backend: Any, kinds: tuple[str, ...], tmp_path: Path) -> None:
    """Every kind that is offered holds the demo checkpoint to it; the others are refused."""
    texts = {
        "json_schema": '{"type": "boolean"}',
        "regex": "true|false",
        "ebnf": 'root ::= "true" | "false"',
        "lark": 'start: "true" | "false"',
        "structural_tag": '{"type": "structural_tag", "format": {"type": "const_string", "value": "true"}}',
    }
    with in_process(version) as installed:
        model = DEMO
        if flow == "tensorrt":
            model = tmp_path / "engine"
            installed.build(BuildSpec(DEMO, model, tmp_path, 4, 64, 128, 256))
        options = LlmOptions(model, flow, 4, 128, guided_decoding_backend=backend, tokenizer=DEMO)  # type: ignore[arg-type]
        assert installed.grammar_kinds(options) == kinds
        llm = installed.open(options)
        sampling = Sampling(max_tokens=16, end_id=2, pad_id=0, params=GREEDY, vocab_size=3072)
        for kind, text in texts.items():
            asked = replace(sampling, grammar=Grammar(kind, text))  # type: ignore[arg-type]
            if kind not in kinds:
                with pytest.raises(ValueError, match=r"^grammar: "):
                    ask(installed, llm, asked)
                continue
            tokens = [token for token in ask(installed, llm, asked).token_ids if token != 2]
            assert text_of(tokens) in ("true", "false"), kind
        llm.shutdown()


def text_of(token_ids: list[int]) -> str:
    from tokenizers import Tokenizer

    text: str = Tokenizer.from_file(str(DEMO / "tokenizer.json")).decode(token_ids)
    return text


@pytest.fixture
def adapter(tmp_path: Path) -> LoraAdapter:
    """Of the demo checkpoint: makes everything larger in one projection."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 64}))
    key = "base_model.model.model.layers.0.mlp.down_proj.lora_{}.weight"
    torch.manual_seed(1)
    save_file(
        {key.format("A"): torch.randn(2, 512), key.format("B"): torch.randn(256, 2)},
        folder / "adapter_model.safetensors",
    )
    return LoraAdapter("pirate", folder, 1)


@pytest.mark.parametrize(
    ("version", "flow"), [("0.20.0", "tensorrt"), ("1.2.1", "tensorrt"), ("1.0.0", "pytorch"), ("1.2.1", "pytorch")]
)
def test_adapters(version: str, flow: str, adapter: LoraAdapter, tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=6, end_id=None, pad_id=0, params=GREEDY, vocab_size=3072)
    with in_process(version) as installed:
        model = DEMO
        if flow == "tensorrt":
            model = tmp_path / "engine"
            spec = BuildSpec(DEMO, model, tmp_path, 4, 64, 128, 256, lora_dirs=(adapter.path,), max_lora_rank=2)
            installed.build(spec)
            built = json.loads((model / "config.json").read_text())["build_config"]
            assert built["lora_config"]["max_lora_rank"] == 2
            assert built["plugin_config"]["lora_plugin"]
        several = (adapter, LoraAdapter("other", adapter.path, 2))
        options = LlmOptions(model, flow, 4, 128, lora=several, max_loras=3, max_lora_rank=2)  # type: ignore[arg-type]
        if flow == "pytorch":
            with pytest.raises(AssertionError, match="at least one lora target module"):
                installed.open(options)
        llm = installed.open(msgspec.structs.replace(options, lora_target_modules=("mlp_4h_to_h",)))
        plain, adapted = ask(installed, llm, sampling), ask(installed, llm, sampling, adapter)
        assert list(plain.token_ids) != list(adapted.token_ids)
        # One that comes later.
        assert ask(installed, llm, sampling, LoraAdapter("third", adapter.path, 3)).token_ids == adapted.token_ids
        llm.shutdown()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_option_of_a_build(version: str, world: World, tmp_path: Path) -> None:
    data = tmp_path / "calibration"
    data.mkdir()
    spec = world.spec(
        max_beam_width=2,
        dtype="float16",
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        workers=4,
        quant_algorithm="W4A16_AWQ",
        kv_cache_dtype="int8",
        calib_dataset=str(data),
        calib_size=16,
        calib_max_seq_length=128,
        plugins={
            "gemm_plugin": "float16",
            "use_paged_context_fmha": "enable",
            "tokens_per_block": "64",
            "moe_plugin": "disable",
        },
        multiple_profiles=True,
        gather_logits=True,
        trust_remote_code=True,
    )
    with world.api(version) as installed:
        installed.build(spec)
    (call,) = world.calls("LLM.tensorrt")
    config = json.loads((spec.output / "config.json").read_text())
    limits = {"max_batch_size": 4, "max_input_len": 16, "max_seq_len": 32, "max_num_tokens": 64, "max_beam_width": 2}
    assert config["build_config"] == config["build_config"] | limits | {"gather_generation_logits": True}
    plugins = config["build_config"]["plugin_config"]
    assert plugins == plugins | {
        "gemm_plugin": "float16",
        "use_paged_context_fmha": True,
        "tokens_per_block": 64,
        "moe_plugin": None,
        "multiple_profiles": True,
    }
    assert config["pretrained_config"]["quantization"] == {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "INT8"}
    assert call["calib_config"] == call["calib_config"] | {
        "calib_dataset": str(data),
        "calib_batches": 16,
        "calib_batch_size": 1,
        "calib_max_seq_length": 128,
    }
    assert call["workspace"] == str(spec.workspace)
    assert call["kv_cache_config"]["max_tokens"] == 64
    assert call["gather_generation_logits"] is True
    assert call["trust_remote_code"] is True
    assert (call["tensor_parallel_size"], call["pipeline_parallel_size"], call["dtype"]) == (2, 2, "float16")
    assert [path.name for path in sorted(spec.output.glob("rank*"))] == [f"rank{rank}.engine" for rank in range(4)]
    assert len(world.calls("shutdown")) == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"workers": 3, "tensor_parallel_size": 2}, "--workers 3 cannot be had: .* 2 ranks side by side"),
        ({"plugins": {"use_custom_all_reduce": "enable"}}, "no plugin option use_custom_all_reduce"),
        ({"plugins": {"model_fields": "x"}}, "no plugin option model_fields"),
        ({"plugins": {"dtype": "float16"}}, "no plugin option dtype"),
        ({"plugins": {"gemm_plugin": "int2"}}, "plugin option gemm_plugin: 'int2' is refused"),
        (
            {"plugins": {"context_fmha": "auto"}},
            "plugin option context_fmha: 'auto' is refused: it is enable or disable",
        ),
        ({"plugins": {"tokens_per_block": "many"}}, "plugin option tokens_per_block: 'many' is refused"),
    ],
)
@pytest.mark.parametrize("version", ["1.1.0", "1.2.1"])
def test_what_cannot_be_built(version: str, values: dict[str, Any], told: str, world: World) -> None:
    with world.api(version) as installed, pytest.raises(EngineLoadError, match=told):
        installed.build(world.spec(**values))
    assert world.calls("LLM.tensorrt") == []


def test_an_engine_is_shut_down_when_it_cannot_be_saved(world: World) -> None:
    with world.api(fail="save:disk") as installed, pytest.raises(OSError, match="No space left on device"):
        installed.build(world.spec())
    assert len(world.calls("shutdown")) == 1


GPU_TABLE = """\
0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 9.0
1, GPU-bbbb, NVIDIA L4, 23034, 8.9
2, GPU-cccc, NVIDIA L4, [N/A], 8.9
no GPU at all
"""


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (None, ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]),
        ("1", ["NVIDIA L4"]),
        ("1,0", ["NVIDIA L4", "NVIDIA H100 80GB HBM3"]),
        ("GPU-bb,GPU-aa", ["NVIDIA L4", "NVIDIA H100 80GB HBM3"]),
        ("0,7,1", ["NVIDIA H100 80GB HBM3"]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_gpus(devices: str | None, names: list[str]) -> None:
    assert [gpu.name for gpu in nvidia_smi.parse(GPU_TABLE, devices)] == names


def test_gpus_by_nvidia_smi() -> None:
    with in_process(FAKE_GPUS="NVIDIA L4,23034,8.9;NVIDIA L4,23034,8.9") as installed:
        first, _ = installed.gpus()
        assert (first.name, first.compute_capability, first.memory_bytes) == ("NVIDIA L4", "8.9", 23034 << 20)
    with in_process(FAKE_GPUS="none") as installed:
        assert installed.gpus() == []


class RequestError(RuntimeError):
    """Named as TensorRT-LLM's own."""


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        (RequestError("x"), True),
        (KeyError("x"), True),
        (RuntimeError("x"), False),
        (OSError("x"), False),
        (type("CppExecutorError", (RuntimeError,), {})("x"), False),
        (type("RequestSpecificException", (Exception,), {})("x"), True),
    ],
)
def test_whose_failure_it_is(error: Exception, alone: bool) -> None:
    with in_process() as api:
        assert api.is_of_the_request(error) == alone


@pytest.mark.parametrize(
    ("name", "value"),
    [("doing_shutdown", True), ("doing_pre_shutdown", True), ("mpi_futures", "done"), ("_error_queue", "error")],
)
def test_signs_of_a_dead_executor(name: str, value: Any, world: World) -> None:
    """Which one there is goes by version; an executor that has none of them counts as healthy."""
    running: Future[None] = Future()
    ended: Future[None] = Future()
    ended.set_result(None)
    errors: queue.Queue[Exception] = queue.Queue()
    given = {"done": [running, ended], "error": errors}.get(value, value)
    with world.api() as installed:
        opened = installed.open(world.options(installed, "pytorch"))
        executor = opened.llm._executor
        try:
            opened.llm._executor = SimpleNamespace()
            assert installed.healthy(opened)
            opened.llm._executor = SimpleNamespace(mpi_futures=[running], _error_queue=errors)
            assert installed.healthy(opened)
            errors.put(RuntimeError())
            opened.llm._executor = SimpleNamespace(**{name: given})
            assert not installed.healthy(opened)
        finally:
            opened.llm._executor = executor
            opened.shutdown()


def test_a_rank_that_is_killed_is_noticed(world: World) -> None:
    """By its process, which nothing tells of; and newer versions tell by a check of their own."""
    rank = subprocess.Popen([sys.executable, "-c", "input()", "mpi4py.futures.server"], stdin=subprocess.PIPE)
    try:
        with world.api() as installed:
            opened = installed.open(world.options(installed, "pytorch"))
            try:
                assert opened.ranks.pids == (rank.pid,)
                assert installed.healthy(opened)
                opened.llm._check_health = lambda: False
                assert not installed.healthy(opened)
                opened.llm._check_health = lambda: True
                rank.kill()
                # Not reaped: as a rank's parent leaves it.
                os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
                assert not installed.healthy(opened)
            finally:
                opened.shutdown()
    finally:
        rank.kill()
        rank.wait()
        assert rank.stdin is not None
        rank.stdin.close()


@pytest.mark.parametrize(("version", "flow"), FLOWS)
def test_statistics_do_not_pile_up(version: str, flow: str, world: World) -> None:
    with world.api(version) as installed:
        llm = installed.open(world.options(installed, flow))
        ask(installed, llm, PLAIN)
        left = [llm.llm.get_stats_async().items, llm.llm.get_kv_cache_events_async().items]
        assert [bool(items) for items in left] == [flow == "tensorrt", True]
        stored = {"event_id": 1, "data": {"type": "removed", "block_hashes": [7]}}
        left[1].append(json.dumps(stored))
        read = on_loop(installed.read_statistics(llm))
        assert not any(left)
        assert json.loads(read[-1]) == stored
        llm.shutdown()
