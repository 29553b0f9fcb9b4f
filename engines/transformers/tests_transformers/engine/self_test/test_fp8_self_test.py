"""The self-test of an engine that rounds to FP8: models that must pass, and faults that must not.

On a CPU, where nothing is rounded: the engine's products and its cache are made to round as a GPU's do.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from openai_bls.core.manifest import EngineLoadError, Manifest, write_manifest
from openai_bls.engines.registry import create_engine
from openai_bls_transformers import fp8_numbers
from openai_bls_transformers.fp8_numbers import round_rows
from openai_bls_transformers.model import fp8_layers
from openai_bls_transformers.model.fp8_layers import Fp8Linear
from openai_bls_transformers.record import EmbeddedRecord, SelfTestRecord
from openai_bls_transformers.self_test import self_test
from openai_bls_transformers.self_test.plain_pass import Rounding
from tests.engine_contract.support import Recorder
from tests.paths import DEMO

LAYERS, HIDDEN = 28, 64

Patch = pytest.MonkeyPatch
Product = Callable[[Fp8Linear, torch.Tensor], torch.Tensor]
Cache = Callable[[dict[str, torch.Tensor]], None]


def plainly(layer: Fp8Linear, x: torch.Tensor) -> torch.Tensor:
    """The right product, of rows that are rounded unless there is one."""
    rows = round_rows(x) if x.numel() > x.shape[-1] else x
    return fp8_layers.widened_linear(rows, layer.weight, layer.weight_scale, layer.bias)


def unchanged(step: dict[str, torch.Tensor]) -> None:
    """Keep a step's keys and values."""


def compute_by(monkeypatch: Patch, product: Product = plainly, cache: Cache = unchanged) -> None:
    """Let engines multiply by `product`, and their KV caches be in FP8 and keep what `cache` leaves of a step."""
    forward, update = Fp8Linear.forward, PagedAttentionCache.update

    def engine_forward(layer: Fp8Linear, x: torch.Tensor) -> torch.Tensor:
        return product(layer, x) if layer.plain_rounds is None else forward(layer, x)

    def engine_update(self: Any, **named: Any) -> Any:
        cache(named)
        return update(
            self, **named | {name: fp8_numbers.rounded(named[name]) for name in ("key_states", "value_states")}
        )

    monkeypatch.setattr(Fp8Linear, "forward", engine_forward)
    monkeypatch.setattr(PagedAttentionCache, "update", engine_update)
    monkeypatch.setattr(self_test, "rounding_of", lambda *_: Rounding(activations=True, cache=True))


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    """A random checkpoint of 28 layers: the deviation of its weights, by the root of their inputs, says how far it
    amplifies rounding."""

    def written(gain: float) -> Path:
        folder = tmp_path_factory.mktemp("deep") / "checkpoint"
        config = Qwen2Config(
            vocab_size=1024,
            hidden_size=HIDDEN,
            intermediate_size=3 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=gain * HIDDEN**-0.5,
            tie_word_embeddings=False,
        )
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO / name, folder)
        return folder

    return written


@pytest.fixture(scope="session")
def amplifying(deep: Callable[[float], Path]) -> Path:
    """A checkpoint with as much noise as a random one of a 7B's shape."""
    return deep(1.2)


@pytest.fixture(scope="session")
def trained() -> Path:
    return DEMO


def version_of(checkpoint: Path, folder: Path, record: SelfTestRecord | None = None) -> Path:
    """A folder with an engine of `checkpoint` in FP8."""
    manifest = Manifest(
        engine="transformers",
        model_name="m",
        max_model_len=128,
        max_batch_size=8,
        created=1,
        checkpoint=str(checkpoint),
        record=EmbeddedRecord("fp8", record).fields(),
    )
    folder.mkdir(exist_ok=True)
    write_manifest(folder, manifest)
    return folder


def self_tested(version_dir: Path) -> SelfTestRecord:
    """The record of an engine that loads."""
    engine: Any = create_engine(version_dir, Recorder(), {"num_threads": "1", "runner": "continuous_batching"})
    engine.close()
    found: SelfTestRecord = engine.self_test
    return found


def refusal(version_dir: Path) -> str:
    with pytest.raises(EngineLoadError) as caught:
        self_tested(version_dir)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "noise", "is_replayed"), [("checkpoint", 0.1, True), ("trained", 0.022, True), ("amplifying", 0.2, False)]
)
def test_models_that_pass(
    model: str, noise: float, is_replayed: bool, tmp_path: Path, monkeypatch: Patch, request: pytest.FixtureRequest
) -> None:
    """Where rounding changes much, answers are not recorded, and a load tests the engine again."""
    compute_by(monkeypatch)
    checkpoint, whole, find = request.getfixturevalue(model), [], self_test.find

    def count(*given: Any) -> Any:
        whole.append(given)
        return find(*given)

    record = self_tested(version_of(checkpoint, tmp_path / "1"))
    assert record.fp8_noise == pytest.approx(noise, rel=0.5)
    monkeypatch.setattr(self_test, "find", count)
    assert self_tested(version_of(checkpoint, tmp_path / "1", record)) == record
    assert bool(whole) != is_replayed


def test_a_model_that_fp8_ruins(deep: Callable[[float], Path], tmp_path: Path, monkeypatch: Patch) -> None:
    compute_by(monkeypatch)
    said = refusal(version_of(deep(2.3), tmp_path / "1"))
    assert "FP8 does not hold this model's quality" in said
    assert "at most 33% is served" in said


def doubled(layer: Fp8Linear, x: torch.Tensor) -> torch.Tensor:
    """A wrong scale."""
    return 2 * plainly(layer, x) if layer.out_features < layer.in_features else plainly(layer, x)


def without_scales(layer: Fp8Linear, x: torch.Tensor) -> torch.Tensor:
    """One row alone is multiplied by a kernel that takes the first output's scale for all."""
    if x.numel() > x.shape[-1]:
        return plainly(layer, x)
    return torch.nn.functional.linear(x, layer.weight.to(x.dtype) * layer.weight_scale[0], layer.bias)


def next_output_scale(layer: Fp8Linear, x: torch.Tensor) -> torch.Tensor:
    return fp8_layers.widened_linear(round_rows(x), layer.weight, layer.weight_scale.roll(1, 0), layer.bias)


def next_row_scale(layer: Fp8Linear, x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True)
    return plainly(layer, x / scale * scale.roll(1, -2))


def swapped(layer: Fp8Linear, x: torch.Tensor) -> torch.Tensor:
    """Two projections of the same input that lie in one weight have changed places."""
    found = plainly(layer, x)
    return found.roll(layer.out_features // 2, -1) if layer.out_features > layer.in_features else found


def halved_values(step: dict[str, torch.Tensor]) -> None:
    step["value_states"] = step["value_states"] / 2


def shifted_slots(step: dict[str, torch.Tensor]) -> None:
    step["value_states"] = step["value_states"].roll(1, 2)


def overflow(step: dict[str, torch.Tensor]) -> None:
    """Keys in a unit in which most are beyond FP8's largest number."""
    step["key_states"] = step["key_states"] * 1000


FAULTS: dict[str, tuple[Product, Cache]] = {
    **{one.__name__: (one, unchanged) for one in (doubled, without_scales, next_output_scale, next_row_scale, swapped)},
    **{one.__name__: (plainly, one) for one in (halved_values, shifted_slots, overflow)},
}


@pytest.mark.parametrize(
    ("model", "fault"),
    [*(("trained", fault) for fault in FAULTS), ("amplifying", "next_output_scale"), ("amplifying", "shifted_slots")],
)
def test_faults(model: str, fault: str, tmp_path: Path, monkeypatch: Patch, request: pytest.FixtureRequest) -> None:
    compute_by(monkeypatch, *FAULTS[fault])
    said = refusal(version_of(request.getfixturevalue(model), tmp_path / "1"))
    assert "its answers are wrong: after a prompt of" in said


def test_a_replay_finds_what_changed(trained: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    with monkeypatch.context() as build:
        compute_by(build)
        record = self_tested(version_of(trained, tmp_path / "1"))
    compute_by(monkeypatch, next_output_scale)
    said = refusal(version_of(trained, tmp_path / "1", record))
    assert "last self-test" in said


def test_keys_beyond_the_range_of_fp8(trained: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """The same model in another unit of its keys: rounding it shows what a cache without a scale does to it."""
    folder = Path(shutil.copytree(trained, tmp_path / "checkpoint"))
    factors = {"q_proj": 1e-3, "k_proj": 1e3}
    tensors = {
        name: tensor * next((factor for part, factor in factors.items() if part in name), 1.0)
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    compute_by(monkeypatch)
    assert "FP8 does not hold this model's quality" in refusal(version_of(folder, tmp_path / "1"))
