"""Loading models into TensorRT-LLM and watching them, against a fake that takes what the recorded tables say."""

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

from openai_bls.core.manifest import EngineLoadError
from openai_bls_tensorrt_llm.installed import api
from openai_bls_tensorrt_llm.installed.interface import LlmOptions
from tests_tensorrt_llm.engine.fake_support import environment, in_process, on_loop, patched
from tests_tensorrt_llm.engine.scripted_api import RequestError
from tests_tensorrt_llm.installed.world import END, FLOWS, PLAIN, World, ask


@pytest.mark.parametrize(
    ("version", "values", "told"),
    [
        ("0.19.0", {}, r"0\.19\.0 .* 0\.20 "),
        ("0.10.0", {}, r"0\.10\.0 .* 0\.20 "),
        ("1.2.1", {"fail": "import:missing"}, "tritonserver:TAG-trtllm"),
        ("1.2.1", {"fail": "import:library"}, r"libnvinfer\.so\.10"),
        ("nonsense", {}, "'nonsense'"),
    ],
)
def test_not_installed(version: str, values: dict[str, str], told: str) -> None:
    with patched(environment(version, **values)), pytest.raises(EngineLoadError, match=told):
        api.installed()


def test_no_package_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineLoadError, match="tritonserver:TAG-trtllm"):
        api.installed()


def test_what_mpirun_left_is_gone_before_the_import() -> None:
    with patched(environment(OMPI_COMM_WORLD_RANK="0", PMIX_RANK="0", PMI_SIZE="1", OMPI_MCA_BTL="tcp", OTHER="1")):
        api.installed()
        assert [name for name in os.environ if name.startswith(("OMPI_", "PMIX_", "PMI_"))] == ["OMPI_MCA_BTL"]
        assert os.environ["OTHER"] == "1"


@pytest.mark.parametrize(("version", "flow"), FLOWS)
def test_a_request(version: str, flow: str, world: World) -> None:
    with world.opened(version, flow) as (installed, llm):
        found = ask(installed, llm, PLAIN)
    tokens = [5, 6, 7] if flow == "tensorrt" else [5, 6, 7, END]
    assert (list(found.token_ids), found.finish_reason) == (tokens, "stop")
    (call,) = world.calls("generate_async")
    assert (call["streaming"], call["detokenize"], call["top_k"]) == (True, False, 1)
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
    options: dict[str, Any] = {
        "max_num_tokens": 32,
        "tensor_parallel_size": 1,
        "tokenizer": tokenizer_dir,
        "kv_cache_free_gpu_mem_fraction": 0.5,
        "max_tokens_in_paged_kv_cache": 1024,
        "kv_cache_host_memory_bytes": 1 << 20,
        "enable_kv_cache_reuse": False,
        "max_attention_window_size": (16, 32),
        "enable_chunked_context": True,
        "batch_scheduler_policy": "max_utilization",
    }
    with world.opened(version, flow, **options):
        pass
    (call,) = world.calls(f"LLM.{flow}")[-1:]
    assert call["kv_cache_config"] == call["kv_cache_config"] | {
        "enable_block_reuse": False,
        "free_gpu_memory_fraction": 0.5,
        "max_tokens": 1024,
        "host_cache_size": 1 << 20,
        "max_attention_window": [16, 32],
    }
    assert call["scheduler_config"]["capacity_scheduler_policy"] == "MAX_UTILIZATION"
    assert (call["enable_chunked_prefill"], call["max_num_tokens"]) == (True, 32)
    assert (call["skip_tokenizer_init"], call["tokenizer"]) == (False, str(tokenizer_dir))
    assert call.get("fail_fast_on_attention_window_too_large", True) is True
    if flow == "pytorch":
        assert call["max_seq_len"] == 32
        sampler = {"1.0.0": ("enable_trtllm_sampler", True)}.get(version, ("sampler_type", "TRTLLMSampler"))
        assert call[sampler[0]] == sampler[1]


def test_without_a_tokenizer_none_is_looked_for(world: World) -> None:
    with world.opened():
        assert world.calls("LLM.pytorch")[0]["skip_tokenizer_init"] is True


@pytest.mark.parametrize(
    ("version", "flow", "values", "told"),
    [
        ("0.20.0", "pytorch", {}, r"0\.20\.0 .*PyTorch"),
        ("1.3.0rc21", "tensorrt", {}, "1.3.0rc21 .*TensorRT engines"),
        ("1.2.1", "tensorrt", {"guided_decoding_backend": "llguidance"}, "llguidance .*TensorRT engines"),
        ("1.2.1", "pytorch", {"guided_decoding_backend": "xgrammar"}, "tokenizer"),
        ("1.2.1", "pytorch", {"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8 "),
        ("1.2.1", "pytorch", {"kv_cache_dtype": "nvfp4"}, "--kv-cache-dtype nvfp4 .*: auto, fp8"),
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
    with world.opened(version) as (installed, llm):
        assert list(ask(installed, llm, replace(PLAIN, logprobs=5)).token_ids) == [5, 6, 7, END]
        with pytest.raises(EngineLoadError, match="TensorRT engines"):
            installed.build(world.spec())
    # 1.4 has it no more, and refuses all but the default.
    assert world.calls("LLM.pytorch")[0].get("sampler_type", "auto") == "auto"


def test_gpus_by_nvidia_smi() -> None:
    with in_process(FAKE_GPUS="NVIDIA L4,23034,8.9;NVIDIA L4,23034,8.9") as installed:
        first, _ = installed.gpus()
        assert (first.name, first.compute_capability, first.memory_bytes) == ("NVIDIA L4", "8.9", 23034 << 20)
    with in_process(FAKE_GPUS="none") as installed:
        assert installed.gpus() == []


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
    with world.opened() as (installed, opened), pytest.MonkeyPatch.context() as patch:
        for healthy in (SimpleNamespace(), SimpleNamespace(mpi_futures=[running], _error_queue=errors)):
            patch.setattr(opened.llm, "_executor", healthy)
            assert installed.healthy(opened)
        errors.put(RuntimeError())
        patch.setattr(opened.llm, "_executor", SimpleNamespace(**{name: given}))
        assert not installed.healthy(opened)


def test_a_rank_that_is_killed_is_noticed(world: World) -> None:
    """By its process, which nothing tells of; and newer versions tell by a check of their own."""
    arguments = [sys.executable, "-c", "input()", "mpi4py.futures.server"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE) as rank:
        try:
            with world.opened() as (installed, opened):
                assert opened.ranks.pids == (rank.pid,)
                for healthy in (True, False, True):
                    opened.llm._check_health = lambda healthy=healthy: healthy
                    assert installed.healthy(opened) == healthy
                rank.kill()
                # Not reaped: as a rank's parent leaves it.
                os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
                assert not installed.healthy(opened)
        finally:
            rank.kill()


@pytest.mark.parametrize(("version", "flow"), FLOWS)
def test_statistics_do_not_pile_up(version: str, flow: str, world: World) -> None:
    with world.opened(version, flow) as (installed, llm):
        ask(installed, llm, PLAIN)
        left = [llm.llm.get_stats_async().items, llm.llm.get_kv_cache_events_async().items]
        assert [bool(items) for items in left] == [flow == "tensorrt", True]
        stored = {"event_id": 1, "data": {"type": "removed", "block_hashes": [7]}}
        left[1].append(json.dumps(stored))
        read = on_loop(installed.read_statistics(llm))
        assert not any(left)
        assert json.loads(read[-1]) == stored
