"""`EngineInfo` of an embedded engine."""

from __future__ import annotations

from typing import Literal

import msgspec
import transformers

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import Manifest
from openai_bls.engines import engine_info as common
from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls_transformers.options import EngineOptions

_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("stop_token_ids", "stop_words", "bad_words", "min_tokens", "logprobs", "prompt_logprobs", "pooling"),
)


def engine_info(
    facts: CheckpointFacts, manifest: Manifest, options: EngineOptions, grammar_backend: Literal["", "llguidance"]
) -> EngineInfo:
    """Identity, limits and capabilities of the engine.

    Args:
        facts: facts of the checkpoint.
        manifest: manifest that the builder left.
        options: start-up options, which override the manifest.
        grammar_backend: library that holds outputs to a grammar; empty is none.
    """
    here = msgspec.structs.replace(
        manifest,
        engine="transformers",
        max_model_len=min(manifest.max_model_len, facts.max_position_embeddings or manifest.max_model_len),
        max_batch_size=options.max_batch_size or manifest.max_batch_size,
    )
    drafts = options.speculative_method != "none"
    return common.engine_info(
        here,
        facts,
        version=transformers.__version__,
        supported=(*_FIELDS, "prediction") if drafts else _FIELDS,
        max_logprobs=min(MAX_LOGPROBS, facts.vocab_size),
        grammar_backend=grammar_backend,
    )
