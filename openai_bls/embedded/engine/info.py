"""`EngineInfo` of an embedded engine."""

from __future__ import annotations

import transformers

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import Manifest
from openai_bls.embedded.model.lora import Adapters
from openai_bls.embedded.options import EngineOptions, speculative_method
from openai_bls.embedded.sampling.grammar_matcher import ConstraintFactory
from openai_bls.engines.capabilities import ALL_FIELDS, MAX_LOGPROBS


def engine_info(
    facts: CheckpointFacts,
    manifest: Manifest,
    options: EngineOptions,
    grammars: ConstraintFactory | None,
    adapters: Adapters | None,
) -> EngineInfo:
    """Identity, limits and capabilities of the engine.

    Args:
        facts: facts of the checkpoint.
        manifest: manifest that the builder left.
        options: start-up options, which override the manifest.
        grammars: compiler of grammars; None: there are none.
        adapters: loaded adapters; None: there is no room for any.
    """
    absent = {
        "lora_name": adapters is None,
        "grammar": grammars is None,
        "prediction": not speculative_method(options, manifest),
    }
    return EngineInfo(
        engine="transformers",
        model_name=manifest.model_name,
        max_model_len=min(manifest.max_model_len, facts.max_position_embeddings or manifest.max_model_len),
        max_batch_size=options.max_batch_size or manifest.max_batch_size,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        pad_token_id=facts.pad_token_id,
        sampling_defaults=facts.sampling_defaults,
        supported=tuple(field for field in ALL_FIELDS if not absent.get(field)),
        version=f"transformers {transformers.__version__}",
        created=manifest.created,
        max_logprobs=min(MAX_LOGPROBS, facts.vocab_size),
        grammar_backend=grammars.backend if grammars is not None else "",
        lora_names=() if adapters is None else adapters.names,
        max_loras=manifest.lora.max_loras,
        max_lora_rank=manifest.lora.max_lora_rank,
    )
