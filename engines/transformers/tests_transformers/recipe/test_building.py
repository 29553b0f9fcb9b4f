"""Builds of the embedded engine: adapters, and weights that cannot be placed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from openai_bls.builder.options.lora import LoraOptions
from openai_bls.core.manifest import LoraSettings
from openai_bls.engines.registry import create_engine
from openai_bls_transformers.recipe import building
from tests.engine_contract.support import Recorder
from tests.unit.builder.builds import refusal, run
from tests.unit.builder.repositories import contents
from tests.unit.builder.repositories import make_adapter as of_size_4
from tests_transformers.engine.adapters import QUERIES, make_adapter


def test_adapters(source: Path, repository: Path, tmp_path: Path) -> None:
    lora = LoraOptions({"poet": make_adapter(source, tmp_path / "poet", **QUERIES)}, max_loras=3)
    manifest, _ = run(source, repository, lora=lora)
    assert manifest.lora == LoraSettings({"poet": "lora/poet"}, max_loras=3, max_lora_rank=2)
    recorder = Recorder()
    engine = create_engine(repository / "tensorrt_llm" / "1", recorder, {"num_threads": "1"})
    assert (engine.info.lora_names, engine.info.max_loras) == (("poet",), 3)
    engine.close()
    assert "up to date" in run(source, repository, lora=lora)[1][0]
    shutil.rmtree(repository / "tensorrt_llm" / "1" / "lora")
    assert run(source, repository, lora=lora)[0].lora == manifest.lora
    assert (repository / "tensorrt_llm" / "1" / "lora" / "poet" / "adapter_model.safetensors").is_file()
    assert run(source, repository)[0].lora == LoraSettings()
    assert not (repository / "tensorrt_llm" / "1" / "lora").exists()
    # Of another model: told before the engine that is there is touched.
    other = LoraOptions({"clerk": of_size_4(tmp_path / "clerk", 8)})
    said = refusal(source, repository, lora=other, self_test=True)
    assert said.startswith(
        "the adapter clerk does not load: the adapter is of another model: model.layers.0.self_attn.q"
    )
    said = refusal(source, repository, lora=LoraOptions({"tiny-qwen": lora.adapters["poet"]}))
    assert said.startswith("'tiny-qwen' is the engine's own name and an adapter's")
    assert "null engine" in refusal(source, repository, lora=lora, engine="null")


def test_a_failure_with_the_weights_leaves_the_last_engine(
    source: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(source, repository)
    before = contents(repository)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "place_weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(source, repository, max_model_len=99)
    assert contents(repository) == before
