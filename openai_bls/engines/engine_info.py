"""`EngineInfo` of an engine that is a package of others, from its manifest and what the package can do."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

import msgspec

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import EngineInfo, GrammarDialect, SamplingParams
from openai_bls.core.manifest import Manifest
from openai_bls.engines.capabilities import ALL_FIELDS

logger = logging.getLogger(__name__)


def engine_info(
    manifest: Manifest,
    facts: CheckpointFacts,
    *,
    version: str,
    supported: Iterable[str],
    max_logprobs: int,
    grammar_backend: Literal["", "llguidance", "xgrammar"] = "",
    grammar_kinds: tuple[str, ...] = (),
    grammar_dialect: GrammarDialect = "llguidance",
    grammar_excludes: tuple[str, ...] = (),
    marker_token_ids: dict[str, int] | None = None,
    max_num_tokens: int = 0,
) -> EngineInfo:
    """Identity, limits and capabilities of the engine of `manifest`.

    Args:
        manifest: manifest that the builder left; its adapters decide on `lora_name`, its `max_images` on `media`.
        facts: facts of the engine's checkpoint.
        version: version of the engine's package.
        supported: fields that requests may use, named as in `capabilities`, apart from `grammar`, `lora_name` and
            `media`.
        max_logprobs: largest number of likeliest tokens per position.
        grammar_backend: library that holds outputs to a grammar; empty is none.
        grammar_kinds: values of `Grammar.kind` that it takes; empty is all.
        grammar_dialect: formats that it takes.
        grammar_excludes: see `EngineInfo`.
        marker_token_ids: see `EngineInfo`.
        max_num_tokens: see `EngineInfo`.
    """
    names = set(supported) - {"grammar", "lora_name", "media"}
    if grammar_backend:
        names.add("grammar")
    if manifest.lora.max_loras:
        names.add("lora_name")
    if manifest.max_images:
        names.add("media")
    fields = tuple(field for field in ALL_FIELDS if field in names)
    return EngineInfo(
        engine=manifest.engine,
        model_name=manifest.model_name,
        max_model_len=manifest.max_model_len,
        max_batch_size=manifest.max_batch_size,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        pad_token_id=facts.pad_token_id,
        sampling_defaults=_honoured(facts.sampling_defaults, fields),
        supported=fields,
        version=f"{manifest.engine} {version}",
        created=manifest.created,
        max_logprobs=max_logprobs,
        grammar_backend=grammar_backend,
        grammar_kinds=grammar_kinds if grammar_backend else (),
        grammar_dialect=grammar_dialect,
        grammar_excludes=grammar_excludes,
        marker_token_ids=marker_token_ids or {},
        lora_names=tuple(manifest.lora.adapters),
        max_loras=manifest.lora.max_loras,
        max_lora_rank=manifest.lora.max_lora_rank,
        input_modalities=("text", "image") if manifest.max_images else ("text",),
        max_images=manifest.max_images,
        max_num_tokens=max_num_tokens,
    )


def _honoured(defaults: SamplingParams, supported: tuple[str, ...]) -> SamplingParams:
    """The checkpoint's own sampling parameters without those that the engine lacks, which every request would have."""
    neutral = SamplingParams()
    changes = {
        name: getattr(neutral, name)
        for name in SamplingParams.__struct_fields__
        if name not in supported and getattr(defaults, name) != getattr(neutral, name)
    }
    if changes:
        logger.warning("generation_config.json sets %s, which this engine does not honour", ", ".join(sorted(changes)))
    return msgspec.structs.replace(defaults, **changes)
