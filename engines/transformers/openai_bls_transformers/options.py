"""Start-up options of the embedded engine."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from openai_bls.core.manifest import EngineLoadError, NotNegative, Positive
from openai_bls.core.settings import EngineSettings

_KV_EVENTS = ("kv_events_endpoint", "kv_events_replay_endpoint", "kv_events_topic")
_SHARED_SETTINGS = {
    *_KV_EVENTS,
    "exclude_input_in_output",
    "max_tokens_in_paged_kv_cache",
    "enable_kv_cache_reuse",
    "lora_watch_dir",
    "verify_weights",
}
"""Fields of `EngineSettings` that the embedded engine honours."""


Attention = Literal["auto", "paged", "varlen", "sdpa", "eager", "flash_attention_2", "flash_attention_3"]


class EngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the environment that override the manifest's. All values may come as strings."""

    device: Annotated[str, msgspec.Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Device of the model. `auto` is the GPU where there is one."""
    num_threads: NotNegative = 0
    """CPU threads for the model's arithmetic; 0 is half of the cores."""
    max_batch_size: NotNegative = 0
    """Sequences in flight; 0 takes the manifest's."""
    max_num_tokens: NotNegative = 0
    """Tokens of one forward pass, prompts and new tokens together; 0 lets the engine choose."""
    max_step_ms: NotNegative = 8
    """Milliseconds that a step may take on a GPU with paged attention while sequences decode; up to six times as many
    for prompts that would wait too long. 0 is no limit but `max_num_tokens`."""
    max_tokens_in_kv_cache: NotNegative = 0
    """Tokens of all sequences together in the KV cache; 0 takes the manifest's."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """Type of keys and values in the cache. `auto` is the model's own; `fp8` is e4m3 without a scale, which takes half
    the memory, for the attention `paged` on a GPU of compute capability 8.9 or later."""
    prefix_sharing: bool = True
    """Prompts with a common beginning share its KV cache."""
    kv_events_endpoint: str = ""
    """ZMQ address of KV events; empty takes that of the settings. Needs `prefix_sharing` and `continuous_batching`."""
    kv_events_replay_endpoint: str = ""
    """ZMQ address at which they are sent again; empty takes that of the settings."""
    kv_events_topic: str = ""
    """Topic of KV events; empty takes that of the settings."""
    runner: Literal["auto", "continuous_batching", "dynamic_cache"] = "auto"
    """Runner that generates: `continuous_batching` over one paged cache, or `dynamic_cache` with a cache for each
    sequence, slower and for any model. `auto` goes by the model."""
    attention: Attention = "auto"
    """Implementation of attention: `paged` reads the KV cache in place, `varlen` gathers it for PyTorch's flash
    attention, the others are transformers'. `auto` is the fastest that can be used."""
    cuda_graphs: bool | None = None
    """Replay captured CUDA graphs. None: on a GPU, with an attention that allows it (paged and flash attention)."""
    async_batching: bool | None = None
    """Prepare a step while the one before it runs. None: on a GPU, unless each step needs an attention mask."""
    speculative_method: Literal["none", "ngram"] = "none"
    """Speculative decoding by drafts. `ngram` drafts from the sequence's own text, where the last tokens stood before,
    and from the `prediction` of its request."""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    """Most tokens of a draft."""
    prompt_lookup_min: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    """Tokens of the shortest n-gram that is looked up."""
    prompt_lookup_max: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    """Tokens of the longest n-gram that is looked up."""
    speculative_disable_by_batch_size: Positive = 8
    """Sequences in flight beyond which nothing is drafted: wider steps then cost more than they save."""
    fused_ops: bool | None = None
    """Norms, rotations, gates, projections and experts in fewer operations. None: on a GPU, with paged attention."""
    verify_weights: bool = False
    """Compare the hashes of all files, which reads them whole, before the model is loaded."""
    allow_untested_versions: bool = False
    """Load with a transformers outside the tested range."""


def with_settings(options: EngineOptions, settings: EngineSettings) -> EngineOptions:
    """`options` with what config.pbtxt sets; the environment takes precedence.

    Raises:
        EngineLoadError: the settings hold one that only TensorRT-LLM knows.
    """
    unset = EngineSettings()
    for name in EngineSettings.__struct_fields__:
        if name not in _SHARED_SETTINGS and getattr(settings, name) != getattr(unset, name):
            raise EngineLoadError(
                f"{name} in config.pbtxt is for TensorRT-LLM engines, and this one is embedded; "
                f"it knows {', '.join(sorted(_SHARED_SETTINGS))}"
            )
    changes: dict[str, object] = {name: getattr(options, name) or getattr(settings, name) for name in _KV_EVENTS}
    if settings.max_tokens_in_paged_kv_cache and not options.max_tokens_in_kv_cache:
        changes["max_tokens_in_kv_cache"] = settings.max_tokens_in_paged_kv_cache
    if settings.enable_kv_cache_reuse is False:
        changes["prefix_sharing"] = False
    if settings.verify_weights:
        changes["verify_weights"] = True
    return msgspec.structs.replace(options, **changes)
