"""Choice of the runner and the attention of a model, by what its class and its configuration declare.

Continuous batching lays the tokens of all sequences end to end and swaps the attention function for one that reads a
paged cache. So it is right only where a model leaves all of its memory of the past to that function. Whatever a class
does not declare is for a self-test to find; hence a list of choices, of which the last one, the model's own forward
pass with a cache for each sequence, asks nothing of the model but what `generate` asks.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from openai_bls.core.manifest import EngineLoadError
from openai_bls_transformers.attention_spec import LENGTH_DEPENDENT_ROPE, rope_parameters, rope_types, score_cap
from openai_bls_transformers.options import Attention, EngineOptions

RunnerName = Literal["continuous_batching", "dynamic_cache"]

_PAGED_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers for which continuous batching has a cache."""
_UNCAPPED = ("sdpa", "varlen")
"""Attentions that take a cap of the scores and do nothing with it."""
_VARIES = "each layer has its own"
_UNDECLARED = {
    "diffllama": "its layers call attention more than once",
    "dory": "its layers call attention more than once",
    "hrm_text": "its layers call attention more than once",
    "nemotron": "its layers do not hand on what a paged cache needs",
}
"""Problems of model types that declare none."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunnerChoice:
    """A runner, the attention it runs the model with, and why."""

    runner: RunnerName
    attention: Attention
    reason: str
    shared_steps: bool = True
    """Sequences share forward passes; False only after that has failed."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"

    def __str__(self) -> str:
        slower = ", slower than continuous_batching" if self.runner == "dynamic_cache" else ""
        shared = "" if self.shared_steps else " and a pass for each sequence"
        cache = f" and a KV cache in {self.kv_cache_dtype}" if self.kv_cache_dtype != "auto" else ""
        return f"{self.runner} with attention {self.attention}{cache}{shared}{slower} ({self.reason})"


def candidates(
    model_class: Any,
    config: Any,
    max_model_len: int,
    options: EngineOptions,
    *,
    on_gpu: bool,
    flash_installed: bool = False,
    language_class: Any = None,
) -> list[RunnerChoice]:
    """Choices for a model in order of preference: what works is the first that passes its trial.

    Args:
        model_class: transformers' class of the causal language model.
        config: configuration of the model.
        max_model_len: most tokens of prompt and output together.
        options: `runner` and `attention` leave out all others where they name one.
        on_gpu: the model runs on a GPU.
        flash_installed: transformers finds the package flash-attn.
        language_class: class of the language model within one whose prompts may hold images; None without images.

    Raises:
        EngineLoadError: the options force what the class declares impossible.
    """
    name = model_class.__name__
    text = config.get_text_config(decoder=True)
    problem = batching_problem(language_class or model_class, text, max_model_len)
    if problem is None and language_class is not None:
        problem = _image_problem(model_class, config)
    found: list[RunnerChoice] = []
    if score_cap(text) and options.attention in _UNCAPPED:
        raise EngineLoadError(
            f"attention {options.attention} cannot run {name}: it caps its attention scores; eager can, and is the "
            "default here"
        )
    if options.runner == "continuous_batching" and problem is not None:
        raise EngineLoadError(
            f"runner continuous_batching cannot run {name}: {problem}; dynamic_cache can, and is the default here"
        )
    if options.runner != "dynamic_cache" and problem is None:
        attending = language_class or model_class
        kinds = _batched_attentions(attending, text, on_gpu=on_gpu, flash_installed=flash_installed)
        if options.attention != "auto":
            kinds = {options.attention: "asked for"}
        found = [RunnerChoice("continuous_batching", kind, reason) for kind, reason in kinds.items()]
    if options.runner != "continuous_batching":
        if options.attention in ("paged", "varlen"):
            if not found:
                raise EngineLoadError(
                    f"attention {options.attention} is for the runner continuous_batching, which cannot run {name}: "
                    f"{problem or 'runner dynamic_cache is asked for'}"
                )
        else:
            reason = "asked for" if options.runner == "dynamic_cache" else problem or "continuous batching failed"
            # The model's own default may be sdpa all the same.
            kind: Attention = "eager" if options.attention == "auto" and score_cap(text) else options.attention
            found.append(RunnerChoice("dynamic_cache", kind, reason))
            found.append(RunnerChoice("dynamic_cache", kind, "shared passes failed", shared_steps=False))
    if options.kv_cache_dtype == "auto":
        return found
    paged = [
        dataclasses.replace(one, kv_cache_dtype=options.kv_cache_dtype) for one in found if one.attention == "paged"
    ]
    if not paged:
        why = problem or ("there is none" if not on_gpu else f"attention {found[0].attention}: {found[0].reason}")
        raise EngineLoadError(
            f"kv_cache_dtype {options.kv_cache_dtype} is for the attention paged on a GPU, which {name} cannot have "
            f"here ({why})"
        )
    return paged


def batching_problem(model_class: Any, config: Any, max_model_len: int) -> str | None:
    """Reason for which continuous batching would not run a model rightly; None if nothing declared speaks against it.

    Args:
        model_class: transformers' class.
        config: the configuration of its language model.
        max_model_len: most tokens of prompt and output together.
    """
    # Such a rotary embedding takes its frequencies from the longest sequence of a pass, for all of them.
    unscaled = _unscaled_length(config) if rope_types(config) & LENGTH_DEPENDENT_ROPE else max_model_len
    layers = set(getattr(config, "layer_types", None) or ()) - _PAGED_LAYERS
    sizes = {_value(config, key) for key in ("head_dim", "v_head_dim", "global_head_dim", "swa_head_dim")} - {None}
    reasons = {
        "it keeps a state that is no KV cache": getattr(model_class, "_is_stateful", False),
        "its attention is its own code, which no paged cache reaches": not getattr(
            model_class, "_supports_attention_backend", False
        ),
        f"it has layers of type {', '.join(sorted(layers))}": layers,
        "its attention works in chunks": _value(config, "attention_chunk_size"),
        "its multi-head latent attention has keys and values of different sizes": _value(config, "kv_lora_rank"),
        "its ALiBi positions are added to the attention scores": _value(config, "alibi"),
        "its heads differ in size": len(sizes) > 1 or _VARIES in sizes,
        "some of its layers share their cache": _value(config, "num_kv_shared_layers"),
        f"beyond {unscaled} tokens its rotary embedding depends on the longest sequence of a step; "
        f"with --max-model-len {unscaled} it would not": unscaled < max_model_len,
    }
    return next((reason for reason, holds in reasons.items() if holds), _UNDECLARED.get(config.model_type))


def _image_problem(model_class: Any, config: Any) -> str | None:
    """Reason for which continuous batching would not read images rightly; None if nothing declared speaks against it.

    It has embeddings and positions of an image's tokens, and each sees those before it.
    """
    reasons = {
        "tokens of an image see each other": hasattr(model_class, "create_masks_for_generate"),
        "its configuration names no token for images": getattr(config, "image_token_id", None) is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _value(config: Any, name: str) -> Any:
    """A field of a configuration; None if it has none, `_VARIES` if each layer has its own."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return _VARIES


def _unscaled_length(config: Any) -> int:
    """Tokens up to which a rotary embedding that depends on the length is the plain one."""
    found = getattr(config, "original_max_position_embeddings", None)
    nested = rope_parameters(config)
    lengths = [
        part["original_max_position_embeddings"] for part in nested if "original_max_position_embeddings" in part
    ]
    return int(found or min(lengths, default=0) or config.max_position_embeddings)


def _batched_attentions(model_class: Any, config: Any, *, on_gpu: bool, flash_installed: bool) -> dict[Attention, str]:
    """Attentions for continuous batching, the best first, each with its reason."""
    found: dict[Attention, str] = {"paged": "the fastest on a GPU"} if on_gpu else {}
    if score_cap(config):
        return found | {"eager": "it caps its attention scores"}
    if not getattr(model_class, "_supports_sdpa", False):
        return found | {"eager": "its class has no sdpa"}
    if not on_gpu:
        return {"sdpa": "the default on a CPU"}
    if flash_installed and getattr(model_class, "_supports_flash_attn", False):
        return found | {"flash_attention_2": "flash-attn is installed"}
    return found | {"varlen": "PyTorch has flash attention", "sdpa": "the most general one"}
