"""Text parts of vision-language models: with no images asked for, or none to be had, transformers' own answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, Lfm2VlConfig, Llama4Config

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.manifest import BuildError
from openai_bls.engines.registry import create_engine
from tests.engine_contract.support import Recorder
from tests.unit.core_support import VOCAB_SIZE, write_tokenizer
from tests_transformers.architectures import comparison
from tests_transformers.architectures.checkpoint import MAX_LENGTH, spread, tiny_config
from tests_transformers.architectures.vision_checkpoint import make_vision_checkpoint
from tests_transformers.architectures.vision_table import CASES

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "vision_output_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}


def make_llama4(folder: Path) -> None:
    """A tiny Llama 4 with its vision tower, whose processor needs a package that is not there."""
    text = tiny_config("llama4_text", {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_LENGTH})
    torch.manual_seed(0)
    made = AutoModelForImageTextToText.from_config(
        Llama4Config(text_config=text.to_dict(), vision_config=VISION), dtype=torch.float32
    )
    spread(made)
    made.save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Llama4ImageProcessor"}')


def make_lfm2_vl(folder: Path) -> None:
    """A tiny LFM2-VL, whose processor needs a package that is not there, and whose text has no class."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_LENGTH,
        "layer_types": ["conv", "full_attention"] * 2,
    }
    text = tiny_config("lfm2", sizes)
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Lfm2VlConfig(text_config=text.to_dict(), vision_config={**vision, "model_type": "siglip2_vision_model"})
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Lfm2VlImageProcessor"}')
    (folder / "processor_config.json").write_text('{"processor_class": "Lfm2VlProcessor"}')


@pytest.mark.parametrize("asked", [None, 0, 1])
def test_neither_images_nor_text(asked: int | None, tmp_path: Path, repository: Path) -> None:
    """It is refused by its name, with the package that images need where they are not refused by their option."""
    make_lfm2_vl(tmp_path / "tiny")
    with pytest.raises(BuildError) as caught:
        build(BuildOptions(str(tmp_path / "tiny"), repository, "transformers", max_images=asked), lambda _: None)
    assert ("Lfm2VlForConditionalGeneration" in str(caught.value)) == (asked != 1)
    assert ("torchvision" in str(caught.value).lower()) == (asked != 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["llama4", "gemma3", "gemma4", "qwen3_5"])
@pytest.mark.parametrize("asked", [None, 0])
def test_text_equals_generate(name: str, asked: int | None, tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "tiny"
    if name == "llama4":
        make_llama4(folder)
    else:
        make_vision_checkpoint(folder, name, CASES[name])
        if asked is None:  # nobody asked for images, and there is no processor
            for path in folder.glob("*processor_config.json"):
                path.unlink()
    lines: list[str] = []
    manifest = build(BuildOptions(str(folder), repository, "transformers", max_images=asked), lines.append)
    assert manifest.max_images == 0
    assert any("its text part is served, images are refused" in line for line in lines)
    recorder = Recorder()
    engine = create_engine(repository / "tensorrt_llm" / "1", recorder, {"num_threads": "1"})
    got = comparison.together_and_alone(engine, recorder, comparison.requests())
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    if name == "llama4":
        # The whole model of 5.24 fails without images.
        model = model.language_model
    wanted = [comparison.generated(model, {"input_ids": torch.tensor([prompt])}) for prompt in comparison.prompts()]
    assert comparison.fault(got, wanted) is None
