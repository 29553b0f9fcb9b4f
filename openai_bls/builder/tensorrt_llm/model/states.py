"""States of hybrids: layers that keep one state per sequence, whatever its length, instead of keys and values."""

from __future__ import annotations

from typing import Any, NamedTuple

from openai_bls.core.checkpoint import text_config

_KINDS = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid")
"""Kinds in `layer_types` and `layers_block_type` of layers with a state."""
_PATTERN_STATE = "M"
"""Letter of a Mamba layer in NemotronH's `hybrid_override_pattern`."""


class StateSize(NamedTuple):
    """Elements per sequence, over all layers."""

    convolution: int
    """Last inputs of the convolutions, in the model's type."""
    recurrent: int
    """State of the recurrence."""
    recurrent_float32: bool
    """The recurrence's state is kept in float32, whatever the model's type."""

    def bytes_of(self, element: int) -> int:
        """Bytes per sequence with `element` bytes per element of the model's type."""
        return self.convolution * element + self.recurrent * (4 if self.recurrent_float32 else element)


NO_STATES = StateSize(0, 0, False)


def has_states(config: dict[str, Any]) -> bool:
    """True if some layers of the model keep a state per sequence, by its config.json."""
    text = text_config(config)
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and _PATTERN_STATE in pattern:
        return True
    kinds = text.get("layer_types") or text.get("layers_block_type") or ()
    if any(kind in _KINDS for kind in kinds):
        return True
    # Those that write which layers attend instead.
    return any(text.get(name) for name in ("mamba_d_state", "ssm_state_size", "linear_num_value_heads", "mamba_d_ssm"))


def state_size(text: Any) -> StateSize:
    """State of one sequence, by transformers' reading of the text model's configuration."""
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()
    layers = sum(kind in _KINDS for kind in kinds)

    def number(*names: str) -> int:
        values = (getattr(text, name, None) for name in names)
        return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)

    if not layers:
        return NO_STATES
    dtype = str(getattr(text, "mamba_ssm_cache_dtype", None) or getattr(text, "mamba_ssm_dtype", None) or "")
    if value_heads := number("linear_num_value_heads"):
        key, value = number("linear_key_head_dim"), number("linear_value_head_dim")
        width = 2 * number("linear_num_key_heads") * key + value_heads * value
        steps, recurrent = number("linear_conv_kernel_dim") - 1, value_heads * key * value
    elif state := number("mamba_d_state", "ssm_state_size", "state_size"):
        heads = number("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
        inner = heads * number("mamba_d_head", "mamba_head_dim", "mamba_headdim")
        inner = inner or number("mamba_expand", "expand") * number("hidden_size")
        groups = number("mamba_n_groups", "n_groups", "mamba_ngroups") if heads else 0
        width, steps, recurrent = inner + 2 * groups * state, number("mamba_d_conv", "conv_kernel") - 1, inner * state
    else:
        width, steps, recurrent = number("hidden_size"), number("conv_L_cache", "conv1d_width") - 1, 0
    return StateSize(layers * width * max(0, steps), layers * recurrent, dtype == "float32")
