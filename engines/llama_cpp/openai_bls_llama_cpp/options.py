"""Start-up options of the llama.cpp engine."""

from __future__ import annotations

import os

import msgspec

from openai_bls.core.manifest import EngineLoadError, Manifest, NotNegative
from openai_bls.core.settings import EngineSettings

HONOURED_SETTINGS = {
    "enable_kv_cache_reuse",
    "exclude_input_in_output",
    "max_tokens_in_paged_kv_cache",
    "verify_weights",
}
"""Fields of `EngineSettings` that this engine honours, beside those about its process."""


class LlamaCppOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the environment that override the manifest's. All values may come as strings."""

    num_threads: NotNegative = 0
    """CPU threads of a step; 0 is half of the cores."""
    max_batch_size: NotNegative = 0
    """Sequences in flight; 0 takes the manifest's."""
    max_tokens_in_kv_cache: NotNegative = 0
    """Tokens of all sequences together in the KV cache; 0 takes the manifest's."""
    prefix_sharing: bool = True
    """A prompt takes over the KV cache of another one's common beginning."""

    @property
    def threads(self) -> int:
        """Threads of a step."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.num_threads or max(1, cores // 2)

    def over(self, manifest: Manifest) -> Manifest:
        """Manifest with these options applied."""
        tokens = self.max_tokens_in_kv_cache or manifest.kv_cache.max_tokens_in_kv_cache
        return msgspec.structs.replace(
            manifest,
            max_batch_size=self.max_batch_size or manifest.max_batch_size,
            kv_cache=msgspec.structs.replace(manifest.kv_cache, max_tokens_in_kv_cache=tokens),
        )


def check_settings(_manifest: Manifest, settings: EngineSettings) -> None:
    """Check settings of config.pbtxt.

    Raises:
        EngineLoadError: the engine does not know one.
    """
    with_settings(LlamaCppOptions(), settings)


def with_settings(options: LlamaCppOptions, settings: EngineSettings) -> LlamaCppOptions:
    """`options` with what config.pbtxt sets; the environment takes precedence.

    Raises:
        EngineLoadError: the settings hold one that this engine does not know.
    """
    unset = EngineSettings()
    for name in EngineSettings.__struct_fields__:
        known = name in HONOURED_SETTINGS or name.startswith("engine_")
        if not known and getattr(settings, name) != getattr(unset, name):
            raise EngineLoadError(
                f"{name} in config.pbtxt is for other engines than llama_cpp, which knows "
                f"{', '.join(sorted(HONOURED_SETTINGS))}"
            )
    changes: dict[str, object] = {}
    if settings.max_tokens_in_paged_kv_cache and not options.max_tokens_in_kv_cache:
        changes["max_tokens_in_kv_cache"] = settings.max_tokens_in_paged_kv_cache
    if settings.enable_kv_cache_reuse is False:
        changes["prefix_sharing"] = False
    return msgspec.structs.replace(options, **changes)
