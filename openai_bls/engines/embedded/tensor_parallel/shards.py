"""Shards of a model: one rank's part of the weights, read from the files, in modules of transformers' own class.

The class is given a configuration with one rank's heads and hidden units, and makes modules of a shard's shapes; its
loading then checks every shape. Added are the sums behind layers that are split by their inputs, and the language
model's head, of which each rank computes a part of the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import nn

from openai_bls.core.manifest import EngineLoadError, Manifest, first_line
from openai_bls.engines.embedded import attention_cpu, attention_eager, fp8_loading
from openai_bls.engines.embedded.options import EngineOptions
from openai_bls.engines.embedded.tensor_check import missing_weights
from openai_bls.engines.embedded.tensor_parallel.collectives import Collectives
from openai_bls.engines.embedded.tensor_parallel.plan import ShardPlan, Split

logger = logging.getLogger(__name__)


class SummedLinear(nn.Module):  # type: ignore[misc]
    """Linear layer split by its inputs: the ranks' products are summed."""

    def __init__(self, linear: nn.Linear, group: Collectives) -> None:
        super().__init__()
        self.linear = linear
        self.group = group
        self.is_summed_later = False
        """Whoever adds the output to the residual stream sums it as well, by `Collectives.add_norm`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The whole product, on every rank; this rank's part of it if that is summed later."""
        return self.group.part(self.linear, x) if self.is_summed_later else self.group.all_reduce(self.linear(x))


class SplitHead(nn.Module):  # type: ignore[misc]
    """Head of a language model, of which each rank computes a part of the vocabulary."""

    def __init__(self, head: nn.Linear, group: Collectives, rank: int) -> None:
        super().__init__()
        vocabulary = slice(rank * head.out_features // group.size, (rank + 1) * head.out_features // group.size)
        self.linear = nn.Linear(head.in_features, head.out_features // group.size, head.bias is not None, "meta")
        # A copy, so that the rest can go; a head that is the embedding as well stays a part of that.
        for name, whole in head.named_parameters():
            setattr(self.linear, name, nn.Parameter(whole.detach()[vocabulary].clone(), requires_grad=False))
        self._group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the whole vocabulary on rank 0; the other ranks may have their part alone."""
        return self._group.gather(self.linear(x))


def widths(model: Any) -> tuple[int, int]:
    """Hidden size, and the logits of one rank, 0 if each rank computes them all."""
    head = model.get_output_embeddings()
    return model.config.hidden_size, head.linear.out_features if isinstance(head, SplitHead) else 0


class RankShard:
    """The part of a model that one rank has; see `Shard`."""

    def __init__(self, plan: ShardPlan, rank: int) -> None:
        self._plan = plan
        self._rank = rank
        self.largest: dict[str, torch.Tensor] = {}

    def read(self, folder: Path) -> dict[str, torch.Tensor]:
        """This rank's part of every tensor in the files."""
        state: dict[str, torch.Tensor] = {}
        for file, name in _tensors(folder):
            module, _, kind = name.rpartition(".")
            match self._plan.split_of(module), kind:
                case "rows", "bias":
                    # Added once.
                    whole = file.get_tensor(name)
                    state[name] = whole if self._rank == 0 else torch.zeros_like(whole)
                case "rows" | "columns" as split, "weight" | "bias":
                    part = file.get_slice(name)
                    state[name] = self._cut(split, part, part.get_shape())
                case _:
                    state[name] = file.get_tensor(name)
        return state

    def find_largest(self, folder: Path, base: str, device: torch.device) -> None:
        """Fill `largest`; `base` is the base model's name in the model."""
        for file, name in _tensors(folder):
            module, _, kind = name.rpartition(".")
            if kind == "weight" and self._plan.split_of(module) == "rows":
                whole = file.get_tensor(name).to(device)
                found = torch.linalg.vector_norm(whole, torch.inf, dim=1, keepdim=True)
                self.largest[f"{base}.{module.removeprefix(f'{base}.')}"] = found

    def of_outputs(self, module: str, whole: torch.Tensor) -> torch.Tensor:
        """See `Shard`."""
        return self._cut("columns", whole, whole.shape) if self._plan.split_of(module) == "columns" else whole

    def of_inputs(self, module: str, whole: torch.Tensor) -> torch.Tensor:
        """See `Shard`."""
        return self._cut("rows", whole, whole.shape) if self._plan.split_of(module) == "rows" else whole

    def whole_sizes(self, module: str, inputs: int, outputs: int) -> tuple[int, int]:
        """See `Shard`."""
        match self._plan.split_of(module):
            case "rows":
                return self._plan.size * inputs, outputs
            case "columns":
                return inputs, self._plan.size * outputs
        return inputs, outputs

    def _cut(self, split: Split, whole: Any, sizes: Sequence[int]) -> torch.Tensor:
        size = sizes[split == "rows"]
        own = slice(self._rank * size // self._plan.size, (self._rank + 1) * size // self._plan.size)
        found: torch.Tensor = whole[own] if split == "columns" else whole[:, own]
        return found


def _tensors(folder: Path) -> Iterator[tuple[Any, str]]:
    """Each tensor of a checkpoint: its file, which is open, and its name there."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                yield file, name


def load_shard(
    folder: Path,
    manifest: Manifest,
    options: EngineOptions,
    plan: ShardPlan,
    rank: int,
    group: Collectives,
    device: torch.device,
) -> Any:
    """The part of rank `rank` of the model in `folder`, on its device.

    Raises:
        EngineLoadError: it does not load.
    """
    if device.type == "cpu":
        attention_cpu.install()
    attention_eager.install()
    asked = options.attention
    transformers.utils.logging.disable_progress_bar()
    try:
        made: Any = transformers.AutoModelForCausalLM._model_mapping[type(plan.config)]
        shard = RankShard(plan, rank)
        state = shard.read(folder)
        if manifest.quant:
            shard.find_largest(folder, made.base_model_prefix, device)
        with fp8_loading.unreported_scales(plan.config if plan.stored_in_fp8 else None):
            model, info = made.from_pretrained(
                None,
                config=plan.config,
                state_dict=state,
                dtype=_dtype(manifest, plan.config, state, device),
                attn_implementation=None if asked in ("auto", "paged", "varlen") else asked,
                output_loading_info=True,
            )
        if problem := missing_weights(info["missing_keys"]):
            raise ValueError(problem)
        del state
        fp8_loading.finish(model, folder, manifest, device, stored=plan.stored_in_fp8, shard=shard)
        _split(model, plan, rank, group)
        model.shard = shard
        return model.to(device).eval()
    except EngineLoadError:
        raise
    except Exception as error:
        logger.exception("loading a shard failed")
        raise EngineLoadError(f"the checkpoint does not load on {plan.size} GPUs: {first_line(error)}") from None


def _dtype(manifest: Manifest, config: Any, state: dict[str, torch.Tensor], device: torch.device) -> torch.dtype:
    if manifest.dtype != "auto":
        dtype: torch.dtype = getattr(torch, manifest.dtype)
    elif device.type == "cpu":
        dtype = torch.float32
    else:
        dtype = config.dtype or next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
    return dtype


def _split(model: Any, plan: ShardPlan, rank: int, group: Collectives) -> None:
    """Put the layers that talk to other ranks into the place of plain ones."""
    for name, module in list(model.base_model.named_modules()):
        if plan.split_of(name) == "rows":
            model.base_model.set_submodule(name, SummedLinear(module, group))
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear) and model._modules.get("lm_head") is head and head.out_features % plan.size == 0:
        model.lm_head = SplitHead(head, group, rank)
