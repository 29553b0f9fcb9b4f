"""Settings that a build writes into config.pbtxt: changed without a rebuild, kept where somebody edited them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.settings import EngineSettings
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.declaration import Queue
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from tests.paths import ROOT
from tests_tensorrt_llm.recipe.build_support import Bench


def with_settings(**settings: object) -> TensorRtLlmOptions:
    return TensorRtLlmOptions(settings=EngineSettings(**settings))  # type: ignore[arg-type]


def test_settings_are_written_without_a_build(bench: Bench) -> None:
    committed = bench.config.read_text()
    first = bench.run()
    assert bench.config.read_text() == committed
    assert bench.build()[1][-1].endswith("is up to date (--force builds it again)")
    own = with_settings(kv_cache_free_gpu_mem_fraction=0.8, enable_chunked_context=True, enable_kv_cache_reuse=False)
    second, lines = bench.build(own)
    assert "no rebuild" in lines[-1]
    assert (second.created, second.engine_files) == (first.created, first.engine_files)
    for line in (
        'parameters { key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.8" } }',
        'parameters { key: "enable_chunked_context" value { string_value: "true" } }',
        'parameters { key: "enable_kv_cache_reuse" value { string_value: "false" } }',
    ):
        assert line in bench.config.read_text()
    assert "up to date" in bench.build(own)[1][-1]
    assert bench.run() == first
    assert bench.config.read_text() == committed
    assert len(bench.machine.builds()) == 1


def test_settings_of_a_killed_run_are_written_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the options of the last build nor the new ones may then be taken for what is in place."""
    committed = bench.config.read_text()
    bench.run()
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if target.name == "config.pbtxt":
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.run(with_settings(enable_chunked_context=True))
    assert bench.config.read_text() != committed
    bench.run()
    assert bench.config.read_text() == committed
    assert len(bench.machine.builds()) == 1


def test_another_kind_of_engine_takes_its_place(bench: Bench) -> None:
    """And leaves neither engine nor settings of the old one, which the new one would refuse."""
    committed = bench.config.read_text()
    bench.run(with_settings(max_tokens_in_paged_kv_cache=5000))
    assert bench.config.read_text() != committed
    bench.run(engine="null")
    assert not (bench.folder / "engine").exists()
    assert bench.config.read_text() == committed


def test_the_cpp_backend(bench: Bench) -> None:
    settings = EngineSettings(batch_scheduler_policy="max_utilization", guided_decoding_backend="xgrammar")
    own = TensorRtLlmOptions(
        backend="cpp", settings=settings, queue=Queue(500, 20), cpp_parameters={"decoding_mode": "top_k_top_p"}
    )
    assert bench.record(own, max_batch_size=7).backend == "cpp"
    text = bench.config.read_text()
    engine = bench.folder.absolute() / "engine"
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
    assert json.loads((engine / "xgrammar_tokenizer_info.json").read_text())["stop_token_ids"]
    assert "decode_context" not in (bench.repository / "ensemble" / "config.pbtxt").read_text()
    # And back.
    bench.run()
    for model in ("tensorrt_llm", "ensemble", "tensorrt_llm_bls"):
        committed = (ROOT / "model_repository" / model / "config.pbtxt").read_text()
        assert (bench.repository / model / "config.pbtxt").read_text() == committed


def test_settings_of_a_further_engine(bench: Bench) -> None:
    for fraction in (0.4, 0.5):
        bench.run(with_settings(kv_cache_free_gpu_mem_fraction=fraction), name="small")
        text = (bench.repository / "tensorrt_llm_small" / "config.pbtxt").read_text()
        assert f'key: "kv_cache_free_gpu_mem_fraction" value {{ string_value: "{fraction}" }}' in text
        assert "`build/engine.py --name small`" in text
    assert len(bench.machine.builds()) == 1


def test_long_prompts(bench: Bench) -> None:
    """Longer than a step, they are taken in over several; or they end there, and the build has said so."""

    def lengths(own: TensorRtLlmOptions) -> tuple[int, int, str]:
        manifest, lines = bench.build(own)
        found = bench.record_of(manifest)
        return found.max_input_len, found.max_num_tokens, "\n".join(lines)

    longest, step, said = lengths(TensorRtLlmOptions(max_num_tokens=512))
    assert (longest, step) == (2047, 512)
    assert "enable_chunked_context" in said
    assert 'parameters { key: "enable_chunked_context" value { string_value: "true" } }' in bench.config.read_text()
    off = EngineSettings(enable_chunked_context=False)
    longest, _, said = lengths(TensorRtLlmOptions(max_num_tokens=512, settings=off))
    assert longest == 512
    assert "note: prompts may have 512 tokens" in said
    asked = TensorRtLlmOptions(max_num_tokens=512, max_input_len=600, settings=off)
    assert "--max-input-len 600 is more than the 512 " in bench.refusal(asked)


def test_settings_that_somebody_changed(bench: Bench) -> None:
    """They stay, and a build with the options of the last one says so."""
    own = with_settings(kv_cache_free_gpu_mem_fraction=0.6)
    for _ in range(2):
        assert not any("was changed" in line for line in bench.build(own)[1])
    assert configure(bench.repository, ["tensorrt_llm.kv_cache_free_gpu_mem_fraction=0.3"])
    edited = bench.config.read_text()
    for force in (False, True):
        (said,) = [line for line in bench.build(own, force=force)[1] if "was changed" in line]
        assert said.endswith("openai-bls render --set tensorrt_llm.NAME=VALUE)")
        assert bench.config.read_text() == edited
    small: Any = {"name": "small", "served_model_name": "small"}
    again = bench.run(own, **small)
    assert configure(bench.repository, ["tensorrt_llm_small.kv_cache_free_gpu_mem_fraction=0.3"])
    manifest, lines = bench.build(own, **small)
    assert manifest == again
    assert "--set tensorrt_llm_small.NAME=VALUE" in lines[-2]
