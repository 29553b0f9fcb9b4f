"""Plan of a model's shards, from transformers' tensor-parallel plan of its class: what is split, and how."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.engines.embedded.attention_spec import head_sizes

Split = Literal["columns", "rows"]
"""By the outputs of a linear layer, which are rows of its weight, or by its inputs, whose products are then summed."""

_SPLITS: dict[str, Split | None] = {"colwise": "columns", "rowwise": "rows", "replicated_with_grad_allreduce": None}
"""transformers' styles of splitting that are known here; None is whole on every rank."""
_ATTENTION: dict[str, Split] = {"q_proj": "columns", "k_proj": "columns", "v_proj": "columns", "o_proj": "rows"}
"""Split of the attention's layers, so that each rank has whole heads and their part of the KV cache."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardPlan:
    """Split of a model's layers over `size` ranks."""

    size: int
    config: Any
    """The model's configuration with the sizes of one rank: its class then makes modules of a shard's shapes."""
    splits: tuple[tuple[str, Split], ...]
    """Name of a module in the base model, `*` for the number of a layer, and how it is split."""
    stored_in_fp8: bool = False
    """The checkpoint's linear layers are in FP8, which `config` does not say."""

    def split_of(self, module: str) -> Split | None:
        """How a module is split; None if every rank has all of it. The name may begin with the base model's."""
        for name, split in self.splits:
            pattern = r"\d+".join(re.escape(part) for part in name.split("*"))
            if re.search(rf"(^|\.){pattern}$", module):
                return split
        return None


def plan_of(folder: Path, size: int, *, trust_remote_code: bool) -> ShardPlan:
    """Plan of the model in `folder` for `size` ranks.

    Raises:
        EngineLoadError: it cannot be split so; one sentence that says why.
    """
    from transformers import AutoConfig

    if trust_remote_code:
        raise _refused("its Python code came with the checkpoint, and only transformers' own classes are split")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise EngineLoadError(f"the checkpoint does not load: {first_line(error)}") from None
    if config.get_text_config(decoder=True) is not config:
        raise _refused("it is more than a language model")
    stored_in_fp8 = getattr(config, "quantization_config", None) is not None
    if stored_in_fp8:
        from openai_bls.engines.embedded import fp8_loading

        config = fp8_loading.config_without_quantization(folder, trust_remote_code=False)
        if config is None:
            raise _refused("its weights are quantized, and only FP8 with a scale for each output or weight is split")
    plan = getattr(config, "base_model_tp_plan", None)
    if not plan:
        raise _refused(f"transformers has no tensor-parallel plan for {config.model_type}")
    unknown = sorted(set(plan.values()) - set(_SPLITS))
    if unknown:
        raise _refused(f"transformers' plan for {config.model_type} splits some layers by {', '.join(unknown)}")
    splits = tuple((name, split) for name, style in plan.items() if (split := _SPLITS[style]) is not None)
    attention = {name.rpartition(".")[2]: split for name, split in splits if ".self_attn." in name}
    if attention != _ATTENTION:
        raise _refused(f"transformers' plan for {config.model_type} does not split its attention by heads")
    return ShardPlan(size, _shard_config(config, size), splits, stored_in_fp8)


def _shard_config(config: Any, size: int) -> Any:
    """The configuration of a model with one rank's heads and hidden units."""
    try:
        heads, kv_heads, head_size = head_sizes(config)
    except RuntimeError:  # transformers' for what each layer has of its own
        raise _refused("its heads differ in size") from None
    counts = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    for name, count in counts.items():
        if not isinstance(count, int) or count % size:
            raise _refused(f"{size} GPUs do not divide its {count} {name.removeprefix('num_').replace('_', ' ')}", size)
    shard = copy.deepcopy(config)
    shard.head_dim = head_size
    for name, count in counts.items():
        setattr(shard, name, count // size)
    return shard


def _refused(reason: str, size: int = 0) -> EngineLoadError:
    given = f"--tp-size {size}" if size else "--tp-size"
    return EngineLoadError(f"{given}: this model is not served on several GPUs by the embedded engine: {reason}")
