"""Numbers in config.json: sizes below 1 are refused by field, and end tokens that are not in the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.checkpoint import CheckpointFacts, is_count, text_config
from openai_bls.core.manifest import BuildError

_COUNTS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions", "num_layers", "num_heads",
    "d_model", "n_layers", "n_heads",
)  # fmt: skip
"""Fields of config.json that are a whole number of at least 1, or absent; some models have a list for some of them."""


def require_counts(source: Path, config: dict[str, Any]) -> None:
    """Check the sizes in a config.json.

    Args:
        source: folder of the checkpoint.
        config: contents of config.json.

    Raises:
        BuildError: one is zero, negative, or no whole number.
    """
    text = text_config(config)
    for name in _COUNTS:
        value = text.get(name)
        if value is not None and not isinstance(value, list) and not is_count(value):
            raise BuildError(
                f"{source}/config.json: {name} is {_json(value)}, where a whole number of at least 1 is needed"
            )


def require_end_tokens(
    source: Path,
    config: dict[str, Any],
    generation: dict[str, Any],
    facts: CheckpointFacts,
    report: Callable[[str], None],
    *,
    force: bool,
) -> None:
    """Check that the end tokens of a checkpoint are of the model's vocabulary; -1 is none.

    Args:
        source: folder of the checkpoint.
        config: contents of config.json.
        generation: contents of generation_config.json; {} where there is none.
        facts: facts of the checkpoint.
        report: called with a line if only some of them are.
        force: take a checkpoint that has no other.

    Raises:
        BuildError: none of them is, so that no answer would end.
    """
    name = "generation_config.json" if "eos_token_id" in generation else "config.json"
    told = generation.get("eos_token_id", text_config(config).get("eos_token_id"))
    if told is None:
        return
    listed = told if isinstance(told, list) else [told]
    if all(one == -1 or one in facts.eos_token_ids for one in listed):
        return
    last = facts.vocab_size - 1
    problem = f"{source / name}: eos_token_id is {_json(told)}, where ids of the vocabulary are needed (0 to {last})"
    if not facts.eos_token_ids and not force:
        raise BuildError(f"{problem}: no answer would end (--force builds it so)")
    report(problem)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
