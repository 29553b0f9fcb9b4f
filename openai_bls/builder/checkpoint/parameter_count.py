"""Parameter counts of a language model: transformers' own class on the meta device, where tensors have no storage.

A model of 70 billion parameters takes a tenth of a second. Code that comes with a checkpoint is never run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import torch

_ROUTER = re.compile(r"(^|\.)(gate|router|shared_expert_gate)(\.|$)")
_EXPERT = re.compile(r"^(?P<layer>.*)\.experts\.((?P<number>\d+)\.)?(down_proj|w2)(\.weight)?$")
_OTHER_MODALITY = re.compile(r"vision|visual|audio|multi_modal|mm_projector")


class ParameterCount(msgspec.Struct, frozen=True):
    """Numbers of parameters by what quantization does with them, and the sizes of a mixture of experts."""

    embedding: int
    """Input embeddings; with tied embeddings they are the output projection too."""
    lm_head: int
    """Output projection; 0 with tied embeddings."""
    linear: int
    """Matrices of attention, MLP and experts: what a quantization makes smaller."""
    router: int
    """Routers of experts and gates of shared experts: never quantized."""
    other: int
    """Biases, norms, convolutions, and all of an image or audio encoder."""
    experts: int = 0
    """Experts of a layer; 0 in a dense model."""
    expert_width: int = 0
    """Intermediate size of one expert."""
    moe_layers: int = 0
    expert_linear: int = 0
    """Parameters among `linear` of the experts that the router chooses from."""

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.lm_head + self.linear + self.router + self.other


def count_parameters(config: Any, architecture: str) -> ParameterCount:
    """Parameters of the model that transformers builds from `config`.

    Args:
        config: a `transformers.PretrainedConfig`.
        architecture: first of config.json's `architectures`; AutoModelForCausalLM chooses if it is no class of
            transformers for such a config.

    Raises:
        ImportError: torch or transformers is not installed.
        Exception: whatever transformers raises for a config that it builds no model from.
    """
    import torch

    model = meta_model(config, architecture)
    tables = {id(model.get_input_embeddings().weight): "embedding"}
    if (head := model.get_output_embeddings()) is not None:
        tables.setdefault(id(head.weight), "lm_head")
    unquantized = {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.modules.conv._ConvNd)
    }
    sizes = dict.fromkeys(("embedding", "lm_head", "linear", "router", "other"), 0)
    for name, parameter in model.named_parameters():
        sizes[tables.get(id(parameter)) or _kind(name, parameter, unquantized)] += parameter.numel()
    return ParameterCount(**sizes, **_expert_sizes(model))


def meta_model(config: Any, architecture: str) -> Any:
    """The model that transformers builds from `config`, with tensors of no storage; see `count_parameters`."""
    import torch
    import transformers

    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # transformers 4, which images with TensorRT-LLM have
        from transformers.modeling_utils import no_init_weights
    named: Any = getattr(transformers, architecture, None)
    with torch.device("meta"), no_init_weights():
        if isinstance(config, getattr(named, "config_class", None) or ()):
            model = named._from_config(config, attn_implementation="eager")
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.tie_weights()
    return model


def _kind(name: str, parameter: torch.Tensor, unquantized: set[str]) -> str:
    if parameter.dim() < 2 or name in unquantized or name.endswith("bias") or _OTHER_MODALITY.search(name):
        return "other"
    return "router" if _ROUTER.search(name) else "linear"


def _expert_sizes(model: Any) -> dict[str, int]:
    """Experts are one tensor [experts, rows, columns] per layer, or modules of their own numbered from 0."""
    hidden_size: int = model.get_input_embeddings().weight.shape[1]
    layers: set[str] = set()
    experts = width = expert_linear = 0
    for name, parameter in model.named_parameters():
        if ".experts." in name and parameter.dim() > 1 and not name.endswith("bias"):
            expert_linear += parameter.numel()
        if expert := _EXPERT.match(name):
            layers.add(expert["layer"])
            one = parameter[0] if expert["number"] is None else parameter
            width = one.numel() // hidden_size
            experts = max(experts, parameter.shape[0] if expert["number"] is None else int(expert["number"]) + 1)
    return {
        "experts": experts,
        "expert_width": width,
        "moe_layers": len(layers),
        "expert_linear": expert_linear,
    }
