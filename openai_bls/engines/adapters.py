"""LoRA adapters in PEFT's folders: adapter_config.json and the shapes of the tensors, read without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.checkpoint import content_problem, read_json, safetensors_header, text_config
from openai_bls.core.engine import LoraError
from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import EngineLoadError

ADAPTER_NAME = re.compile(r"[\w.:-]{1,128}")
"""Names that adapters may have; they are names of models."""
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
DEFAULT_MAX_RANK = 16
"""Largest rank where neither a number nor an adapter is given at the build."""

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# A path in a base model has some 60 characters; patterns that a file names are searched for in it.
_LONGEST_NAME = 256
# What makes a pattern try several ways: with more than one the ways multiply.
_WAYS = re.compile(r"\\.|\(\?:|[(*+?{]", re.DOTALL)
_MOST_WAYS = 1
# What changes more than the products of two matrices; by the names of adapter_config.json.
_UNSUPPORTED = (
    "alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication", "lora_bias",
    "megatron_config", "modules_to_save", "monteclora_config", "target_parameters", "trainable_token_indices",
    "use_bdlora", "use_dora", "use_qalora",
)  # fmt: skip
# Layers whose inputs, and whose outputs, are as wide as the model.
_FROM_HIDDEN = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3", "gate"}
_TO_HIDDEN = {"o_proj", "down_proj", "w2"}
# Values of `init_lora_weights` that leave the base model's weights as they are.
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")


class Module(msgspec.Struct, frozen=True):
    """Sizes of an adapter's two matrices for one linear layer."""

    rank: int
    inputs: int
    outputs: int


class Adapter(msgspec.Struct, frozen=True):
    """Contents of an adapter's folder, without its weights."""

    folder: Path
    config: dict[str, Any]
    modules: dict[str, Module]
    """Linear layers that it changes, by their paths in the base model (`model.layers.0.self_attn.q_proj`)."""

    @property
    def rank(self) -> int:
        """Largest rank of all layers."""
        return max(module.rank for module in self.modules.values())

    def other_base(self, names: Iterable[str]) -> str:
        """The base model by the configuration, if its name is none of `names`; else empty.

        Args:
            names: names, hub ids and paths of the model that the adapter is to change; their last parts count.
        """
        base = str(self.config.get("base_model_name_or_path") or "")
        known = {_last_part(name) for name in names} - {""}
        return base if base and known and _last_part(base) not in known else ""

    def scaling(self, path: str) -> float:
        """Factor of the product of the two matrices of the layer at `path`."""
        rank = self.modules[path].rank
        alpha = float(self._of_layer("alpha_pattern", "lora_alpha", path, 8))
        return alpha / math.sqrt(rank) if self.config.get("use_rslora") else alpha / rank

    def told_rank(self, path: str) -> Any:
        """Rank of the layer at `path` by the configuration; that of its matrices where the configuration has none."""
        return self._of_layer("rank_pattern", "r", path, self.modules[path].rank)

    def _of_layer(self, patterns: str, field: str, path: str, default: int) -> Any:
        """Value of `field` for the layer at `path`; the first of `patterns` that fits overrides it."""
        values = self.config.get(patterns) or {}
        if not isinstance(values, dict):
            raise TypeError(f"{patterns} is no mapping")
        key = next((key for key in values if re.fullmatch(_of_paths(key), path)), None)
        return self.config.get(field, default) if key is None else values[key]


def _of_paths(key: str) -> str:
    """Expression of the paths that a key of PEFT's patterns stands for.

    Raises:
        TypeError: it may take longer than it should.
    """
    ways = [found for found in _WAYS.findall(key) if not found.startswith("\\")]
    if len(ways) > _MOST_WAYS or len(key) > _LONGEST_NAME:
        raise TypeError(f"the pattern {key[:60]} has too many parts")
    return rf"(.*\.)?({key})"


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()


def require_room(info: EngineInfo, name: str) -> None:
    """Raise `LoraError` if the engine that `info` describes can load no adapter of this name."""
    if not info.max_loras:
        raise LoraError(f"the engine {info.engine} has no room for adapters: build it with --max-loras")
    if not ADAPTER_NAME.fullmatch(name):
        raise LoraError(f"{name!r} cannot name an adapter: letters, digits, - . _ and : are allowed, up to 128")
    if name == info.model_name:
        raise LoraError(f"{name} is the name of the model itself")
    if name in info.lora_names:
        raise LoraError(f"the adapter {name} is loaded already")
    if len(info.lora_names) >= info.max_loras:
        raise LoraError(
            f"the engine holds {info.max_loras} adapters at a time (--max-loras): unload one of "
            f"{', '.join(info.lora_names)} first"
        )


def require_loaded(info: EngineInfo, name: str) -> None:
    """Raise `LoraError` if the engine that `info` describes has no adapter of this name."""
    if name not in info.lora_names:
        raise LoraError(f"no adapter is called {name}")


def require_rank(adapter: Adapter, max_rank: int) -> None:
    """Raise `LoraError` if an engine that is set up for ranks up to `max_rank` cannot apply an adapter."""
    if adapter.rank > max_rank:
        raise LoraError(f"the adapter's rank is {adapter.rank}: this engine takes up to {max_rank} (--max-lora-rank)")


def require_shapes(adapter: Adapter, checkpoint: Path) -> None:
    """Raise `LoraError` if an adapter does not fit the model whose config.json is in the folder `checkpoint`."""
    try:
        text = text_config(read_json(checkpoint / "config.json"))
    except EngineLoadError:
        return
    hidden, layers = text.get("hidden_size"), text.get("num_hidden_layers")
    for path, module in adapter.modules.items():
        part = path.rpartition(".")[2]
        sizes = [size for names, size in ((_FROM_HIDDEN, module.inputs), (_TO_HIDDEN, module.outputs)) if part in names]
        if isinstance(hidden, int) and any(size != hidden for size in sizes):
            raise LoraError(f"the adapter is of another model: {path} is {sizes[0]} wide there, and {hidden} here")
        number = next((int(name) for name in path.split(".") if name.isdecimal()), 0)
        if isinstance(layers, int) and number >= layers:
            raise LoraError(f"the adapter is of another model: it changes {path}, and this one has {layers} layers")


def read_adapter(folder: Path) -> Adapter:
    """The adapter in `folder`.

    Raises:
        LoraError: there is none, or it is of a kind that no engine here applies.
    """
    if not folder.is_dir():
        raise LoraError(f"there is no folder {folder.name} with an adapter")
    config = _config(folder / CONFIG_FILE)
    kind = config.get("peft_type")
    if kind not in (None, "LORA"):
        raise LoraError(f"the adapter is of PEFT's type {kind}: only LORA can be applied")
    for field in _UNSUPPORTED:
        if config.get(field):
            hint = ": merge it into the checkpoint (merge_and_unload)" if field == "modules_to_save" else ""
            raise LoraError(f"{field} in {CONFIG_FILE} is not supported{hint}")
    if config.get("bias", "none") != "none":
        raise LoraError(f"bias in {CONFIG_FILE} is {config['bias']!r}: only 'none' is supported")
    if config.get("init_lora_weights") not in _INITS:
        raise LoraError(
            f"init_lora_weights in {CONFIG_FILE} is {config['init_lora_weights']!r}, which changes the base model's "
            "weights too: save the adapter converted to plain LoRA"
        )
    adapter = Adapter(folder, config, _modules(_shapes(folder / WEIGHTS_FILE)))
    try:
        for path in adapter.modules:
            adapter.scaling(path)
    except (TypeError, ValueError, AttributeError, re.error):
        raise LoraError(f"lora_alpha or alpha_pattern in {CONFIG_FILE} is no number, or no pattern") from None
    _require_told_ranks(adapter)
    return adapter


def _require_told_ranks(adapter: Adapter) -> None:
    for path, module in adapter.modules.items():
        try:
            told = adapter.told_rank(path)
        except (TypeError, AttributeError, re.error):
            raise LoraError(f"rank_pattern in {CONFIG_FILE} is no mapping from patterns to ranks") from None
        if told != module.rank:
            raise LoraError(
                f"r in {CONFIG_FILE} is {told!r}, and the matrices of {path} have the rank {module.rank}: the two "
                "files are not of one adapter"
            )


def _config(path: Path) -> dict[str, Any]:
    try:
        _require_content(path)
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise LoraError(f"the folder {path.parent.name} is no adapter: it has no {CONFIG_FILE}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise LoraError(f"{CONFIG_FILE} cannot be read: {error}") from None


def _require_content(path: Path) -> None:
    if (problem := content_problem(path)) is not None:
        raise LoraError(f"{path.name} {problem}")


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of a safetensors file."""
    try:
        _require_content(path)
        return {name: shape for name, (_, shape) in safetensors_header(path).items()}
    except FileNotFoundError:
        raise LoraError(f"the adapter has no {WEIGHTS_FILE}") from None
    except (OSError, ValueError) as error:
        raise LoraError(f"{WEIGHTS_FILE} cannot be read: {error}") from None


def _modules(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Module]:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        match = _TENSOR.fullmatch(name)
        if match is None or len(shape) != 2 or len(name) > _LONGEST_NAME:
            raise LoraError(
                f"the tensor {name[:_LONGEST_NAME]} is not one of a linear layer's LoRA matrices, and no others are "
                "supported"
            )
        found.setdefault(match[1], {})[match[2]] = shape
    if not found:
        raise LoraError(f"{WEIGHTS_FILE} holds no LoRA matrices")
    modules = {}
    for path, pair in found.items():
        if len(pair) != 2 or pair["A"][0] != pair["B"][1] or not pair["A"][0]:
            raise LoraError(f"the LoRA matrices of {path} do not belong together")
        modules[path] = Module(pair["A"][0], pair["A"][1], pair["B"][0])
    return modules
