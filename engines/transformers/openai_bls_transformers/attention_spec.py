"""Attention that a model asks for: heads and rotary embeddings by the configuration, features by a call's arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

_OTHER_FEATURES = ("position_bias", "softcap", "s_aux", "output_attentions")
"""Arguments by which a model asks attention for more than the softmax of masked products."""
SCORING = ("softcap", "s_aux")
"""Arguments among them that `Scoring` has."""
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings of which all sequences of a pass get the one of the longest."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scoring:
    """What a layer does with the scores of its queries and keys besides the softmax."""

    window: int = 0
    """Keys that a query sees, its own included; 0 is all."""
    cap: float = 0.0
    """Bound of the scores: `cap * tanh(score / cap)` stands for each; 0 is none."""
    sinks: Any = None
    """[heads], a score for each head that takes part in its softmax and has no value; None is none."""


PLAIN = Scoring()
"""The softmax of all scores."""


def layer_windows(config: Any) -> list[int]:
    """Keys that a query of each layer sees, its own included, by the configuration of a language model; 0 is all.

    Raises:
        NotImplementedError: it is not told by these layers' kinds and one window.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    others = set(kinds) - {"full_attention", "sliding_attention"}
    if others:
        raise NotImplementedError(f"layers of type {', '.join(sorted(others))}")
    if "sliding_attention" not in kinds:
        return [0] * len(kinds)
    if not isinstance(window, int) or window < 1:
        raise NotImplementedError(f"a sliding window of {window}")
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def score_cap(config: Any) -> float:
    """Bound of the scores of all layers, by the configuration of a language model; 0 is none."""
    return getattr(config, "attn_logit_softcapping", None) or 0.0


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


def other_feature(arguments: Mapping[str, Any], known: Collection[str] = ()) -> str | None:
    """The first of the other features that a call asks for, but for `known` ones; None if it asks for none."""
    features = (name for name in _OTHER_FEATURES if name not in known)
    asked = (name for name in features if arguments.get(name) is not None and arguments[name] is not False)
    return next(asked, None)


def refuse_features(arguments: Mapping[str, Any], refusal: str, known: Collection[str] = ()) -> None:
    """Raise `refusal`, in which {} is the feature, where a call asks for one of the other features, but for `known`."""
    name = other_feature(arguments, known)
    if name is not None:
        raise NotImplementedError(refusal.format(name))
