"""States of hybrids: layers that keep one state per sequence, whatever its length, instead of keys and values."""

from __future__ import annotations

from typing import Any

from openai_bls.core.checkpoint import text_config

_KINDS = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid")
"""Kinds in `layer_types` and `layers_block_type` of layers with a state."""
_PATTERN_STATE = "M"
"""Letter of a Mamba layer in NemotronH's `hybrid_override_pattern`."""


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
