"""Shards of a model: one rank's part of the weights, read from the files, in modules of transformers' own class.

The class is given a configuration with one rank's heads and hidden units, and makes modules of a shard's shapes; its
loading then checks every shape. Added are the sums behind layers that are split by their inputs, and the language
model's head, of which each rank computes a part of the vocabulary.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import nn

from openai_bls.core.manifest import EngineLoadError, Manifest, first_line
from openai_bls.engines.embedded import attention_cpu, attention_eager
from openai_bls.engines.embedded.options import EngineOptions
from openai_bls.engines.embedded.tensor_check import missing_weights
from openai_bls.engines.embedded.tensor_parallel.collectives import Collectives
from openai_bls.engines.embedded.tensor_parallel.plan import ShardPlan

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
        state = _read(folder, plan, rank)
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
        _split(model, plan, rank, group)
        return model.to(device).eval()
    except Exception as error:
        logger.exception("loading a shard failed")
        raise EngineLoadError(f"the checkpoint does not load on {plan.size} GPUs: {first_line(error)}") from None


def _read(folder: Path, plan: ShardPlan, rank: int) -> dict[str, torch.Tensor]:
    """One rank's part of every tensor in the files."""
    state: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                module, _, kind = name.rpartition(".")
                split = plan.split_of(module)
                part, sizes = file.get_slice(name), file.get_slice(name).get_shape()
                if split == "rows" and kind == "bias":
                    # Added once.
                    state[name] = part[:] if rank == 0 else torch.zeros_like(part[:])
                elif split == "columns":
                    state[name] = part[rank * sizes[0] // plan.size : (rank + 1) * sizes[0] // plan.size]
                elif split == "rows":
                    state[name] = part[:, rank * sizes[1] // plan.size : (rank + 1) * sizes[1] // plan.size]
                else:
                    state[name] = part[:]
    return state


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
