"""Weights that an engine reads itself: which of them are placed, and what is refused before it would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.placing.weights import place_as_it_is
from openai_bls.core.manifest import BuildError
from tests.unit.builder.checkpoint.breaks import WEIGHTS, config, indexed, tensors, written


def place(source: Path, target: Path, *, trust_remote_code: bool = False, force: bool = False) -> list[str]:
    """The lines of the build."""
    lines: list[str] = []
    target.mkdir(exist_ok=True)
    checkpoint = Checkpoint.read(source)
    place_as_it_is(checkpoint, target, lines.append, trust_remote_code=trust_remote_code, force=force)
    return lines


def test_one_file_is_taken_and_no_index(source: Path, tmp_path: Path) -> None:
    whole = (source / WEIGHTS).read_bytes()
    indexed()(source)
    (source / WEIGHTS).write_bytes(whole)
    place(source, tmp_path / "placed")
    assert [path.name for path in (tmp_path / "placed").iterdir()] == [WEIGHTS]


def test_quantized_weights_that_nothing_tells_of(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "placed"
    name = "model.layers.0.mlp.up_proj.weight"
    tensors(lambda held: held.update({name: torch.ones(held[name].shape, dtype=torch.int8)}))(source)
    with pytest.raises(BuildError, match="quantization_config"):
        place(source, target)
    assert not list(target.iterdir())
    for options in ({"force": True}, {"trust_remote_code": True}):
        assert any(name in line for line in place(source, target, **options))
    for tell in (
        config(compression_config={"quant_method": "compressed-tensors"}),
        config(compression_config=None, quantization_config={"quant_method": "gptq"}),
        written("quantize_config.json", '{"bits": 8}'),
    ):
        config(compression_config=None, quantization_config=None)(source)
        tell(source)
        assert not any(name in line for line in place(source, target))
    assert load_file(target / WEIGHTS)[name].dtype == torch.int8
