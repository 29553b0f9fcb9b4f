"""Images of a build for TensorRT-LLM: what is granted, what is refused, and which files the engine is given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.images import DEFAULT_MAX_IMAGES
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.images import ARCHITECTURES, WHOLE_PROMPTS
from openai_bls_tensorrt_llm.installed.interface import Version
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.features import NO_REUSE, with_features
from openai_bls_tensorrt_llm.recipe.plan.images import Images, images_of
from tests.paths import ROOT
from tests_tensorrt_llm.recipe.build_support import Bench

DOCS = ROOT / "engines" / "tensorrt_llm" / "docs"
NEWEST = Version(1, 4)
VISION = ROOT / "demo" / "vision-checkpoint"


def planned(name: str, version: Version = NEWEST, *, drafts: bool = False, **options: Any) -> Images:
    own = options.pop("own", TensorRtLlmOptions())
    wanted = BuildOptions("m", Path(), engine="tensorrt_llm", own=own, **options)
    return images_of(wanted, {"architectures": [name]}, None, "pytorch", version, drafts=drafts)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_that_see(name: str) -> None:
    assert planned(name).most == DEFAULT_MAX_IMAGES
    assert planned(name, max_images=3).most == 3
    assert planned(name, max_images=0) == Images()
    assert planned(name, Version(1, 1)).most == 0
    assert "or later" in planned(name, Version(1, 1), max_images=2).refusals[0]
    assert f"`{name}`" in (DOCS / "models.md").read_text()


def test_what_rules_them_out() -> None:
    name = next(iter(ARCHITECTURES))
    assert planned("LlamaForCausalLM") == Images()
    assert "not for LlamaForCausalLM" in planned("LlamaForCausalLM", max_images=1).refusals[0]
    assert planned(name, drafts=True).notes == ("images are refused: not with a speculative_config",)
    assert planned(name, own=TensorRtLlmOptions(backend="cpp")).notes[0].endswith("not with --backend cpp")
    assert planned(name, lora=LoraOptions(max_loras=1)).most == 0
    assert "0 or more" in planned(name, max_images=-1).refusals[0]


@pytest.mark.parametrize("name", WHOLE_PROMPTS)
def test_prompts_that_are_read_whole(name: str) -> None:
    config = {"architectures": [name]}
    settings, found = with_features(EngineSettings(), config, "pytorch", NEWEST, images=True)
    assert (settings.enable_kv_cache_reuse, settings.enable_chunked_context) == (False, False)
    assert len(found.notes) == 2
    settings, found = with_features(EngineSettings(), config, "pytorch", NEWEST)
    reuse = False if name in NO_REUSE else None
    assert (settings.enable_kv_cache_reuse, settings.enable_chunked_context) == (reuse, None)


def test_a_build(bench: Bench, tmp_path: Path) -> None:
    """The processor's files, and the tokenizer's with them, lie beside the weights."""
    source = tmp_path / "sees"
    shutil.copytree(VISION, source)
    config = json.loads((source / "config.json").read_text())
    own = TensorRtLlmOptions(flow="pytorch")
    (source / "config.json").write_text(json.dumps({**config, "architectures": ["LlavaNextForConditionalGeneration"]}))
    found = bench.run(own, source, max_images=2, force=True)
    assert found.max_images == 2
    placed = {path.name for path in (bench.folder / "checkpoint").iterdir()}
    assert placed >= {"preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert placed == set(found.files)
    bench.machine.set(FAKE_TENSORRT_LLM_VERSION="1.1.0")
    said = bench.refusal(own, source, max_images=2, force=True)
    assert said.startswith("--max-images 2: images of LlavaNextForConditionalGeneration ")
    assert "1.2.0" in said
