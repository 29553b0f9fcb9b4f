"""Attention that a model asks for: heads and rotary embeddings by the configuration, features by a call's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OTHER_FEATURES = ("position_bias", "softcap", "s_aux", "output_attentions")
"""Arguments by which a model asks attention for more than the softmax of masked products."""
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings of which all sequences of a pass get the one of the longest."""


def head_sizes(config: Any) -> tuple[int, int, int]:
    """Heads, key heads, and the size of a head, by the configuration of a language model."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, size


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Parameters of the rotary embeddings: of all layers, or of each kind of them."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return [part for part in (parameters, *parameters.values()) if isinstance(part, dict)]


def rope_types(config: Any) -> set[str]:
    """Kinds of rotary embeddings that a configuration names."""
    return {str(part["rope_type"]) for part in rope_parameters(config) if part.get("rope_type")}


def other_feature(arguments: Mapping[str, Any]) -> str | None:
    """The first of the other features that a call asks for; None if it asks for none."""
    asked = (name for name in _OTHER_FEATURES if arguments.get(name) is not None and arguments[name] is not False)
    return next(asked, None)


def refuse_features(arguments: Mapping[str, Any], refusal: str) -> None:
    """Raise `refusal`, in which {} is the feature, where a call asks for one of the other features."""
    name = other_feature(arguments)
    if name is not None:
        raise NotImplementedError(refusal.format(name))
