"""Names of a checkpoint's tensors: what they say where the model of config.json does not take them all."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from openai_bls.core.checkpoint import is_count, missing_weights, text_config

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
"""Part of a tensor's name that has the number of its layer."""
_LORA = re.compile(r"(?:^|\.)(?:lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)|base_layer)(?:\.|$)")
MERGE = "merge the two (peft's merge_and_unload, then save_pretrained) and build the result"


def problem_of_missing(missing: Collection[str], names: Collection[str]) -> str | None:
    """Sentence about weights of the model that no tensor is called like; None if there are none.

    Args:
        missing: the model's names.
        names: names of the checkpoint's tensors, or of those among them that the model does not use.
    """
    if missing and (adapter := lora_tensors(names)):
        return f"they hold a LoRA adapter ({listed(adapter)}) beside the model that it changes: {MERGE}"
    if prefix := _prefix(missing, names):
        return (
            f"their names begin with {prefix!r}, which a wrapper puts there (DataParallel, torch.compile, peft): save "
            "the model inside it, or the tensors without that prefix"
        )
    return missing_weights(missing)


def lora_tensors(names: Collection[str]) -> list[str]:
    """Names of the tensors that are a LoRA adapter's, or of a layer under one, sorted."""
    return sorted(filter(_LORA.search, names))


def surplus_layers(unused: Collection[str], names: Collection[str], config: dict[str, Any]) -> list[int]:
    """Numbers of layers that the model has not: all of their tensors are unused, and they have all that another layer
    of the same stack has of which the model uses some. A stack that it uses nothing of, such as a vision tower's, is
    none of its own; layers for the prediction of further tokens are those that config.json counts.

    Args:
        unused: names of the tensors that the model does not use.
        names: names of all tensors.
        config: config.json.
    """
    text = text_config(config)
    layers, predictors = text.get("num_hidden_layers"), text.get("num_nextn_predict_layers")
    told = range(layers, layers + predictors) if is_count(layers) and is_count(predictors) else range(0)
    dropped = frozenset(unused)
    return sorted(
        {number for stack in _stacks(names).values() for number in _surplus(stack, dropped) if number not in told}
    )


def listed(names: Collection[str]) -> str:
    """Names in a sentence: the first, and the number of the others."""
    first = next(iter(names))
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def _stacks(names: Collection[str]) -> Mapping[str, Mapping[int, Mapping[str, str]]]:
    """Beginning of names → number of a layer → the rest of a name → the name."""
    stacks: dict[str, dict[int, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for name in names:
        if found := _LAYER.search(name):
            stacks[name[: found.start(1)]][int(found[1])][name[found.end() :]] = name
    return stacks


def _surplus(stack: Mapping[int, Mapping[str, str]], dropped: frozenset[str]) -> Iterator[int]:
    used = {
        frozenset(rest for rest, name in layer.items() if name not in dropped)
        for layer in stack.values()
        if not dropped.issuperset(layer.values())
    }
    for number, layer in stack.items():
        if dropped.issuperset(layer.values()) and any(layer.keys() >= needed for needed in used):
            yield number


def _prefix(missing: Collection[str], names: Collection[str]) -> str:
    """What stands before most of the model's names in those of the tensors; empty if there is nothing such."""
    wanted = frozenset(missing)
    found = Counter(
        name[:dot]
        for name in names
        for dot in (place + 1 for place, letter in enumerate(name) if letter == ".")
        if name[dot:] in wanted
    )
    prefix, count = found.most_common(1)[0] if found else ("", 0)
    return prefix if 2 * count >= len(wanted) else ""
