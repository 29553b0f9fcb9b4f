"""EngineInfo of a TensorRT-LLM engine, whichever Triton backend runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams
from openai_bls.core.manifest import Manifest, TensorRtLlmRecord
from openai_bls.engines.capabilities import ALL_FIELDS
from openai_bls.engines.tensorrt_llm.interface import GuidedDecodingBackend

logger = logging.getLogger(__name__)


def engine_info(
    manifest: Manifest,
    facts: CheckpointFacts,
    *,
    version: str,
    supported: Iterable[str],
    max_logprobs: int,
    grammar_backend: GuidedDecodingBackend,
    grammar_kinds: tuple[str, ...],
) -> EngineInfo:
    """The engine of `manifest`, which is of the kind `tensorrt_llm`.

    Args:
        manifest: manifest that the builder left.
        facts: facts of the engine's checkpoint.
        version: version of TensorRT-LLM.
        supported: fields that requests may use, named as in `capabilities`. `grammar` and `lora_name` depend on
            `grammar_backend` and the manifest's adapters alone.
        max_logprobs: the most likeliest tokens per place.
        grammar_backend: library that holds outputs to a grammar; empty is none.
        grammar_kinds: values of `Grammar.kind` that it takes; empty is all.
    """
    names = set(supported) - {"grammar", "lora_name"}
    if grammar_backend:
        names.add("grammar")
    if manifest.lora.max_loras:
        names.add("lora_name")
    fields = tuple(field for field in ALL_FIELDS if field in names)
    return EngineInfo(
        engine="tensorrt_llm",
        model_name=manifest.model_name,
        max_model_len=manifest.max_model_len,
        max_batch_size=manifest.max_batch_size,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        pad_token_id=facts.pad_token_id,
        sampling_defaults=_honoured(facts.sampling_defaults, fields),
        supported=fields,
        version=f"tensorrt_llm {version}",
        created=manifest.created,
        max_logprobs=max_logprobs,
        grammar_backend=grammar_backend,
        grammar_kinds=grammar_kinds if grammar_backend else (),
        lora_names=tuple(manifest.lora.adapters),
        max_loras=manifest.lora.max_loras,
        max_lora_rank=manifest.lora.max_lora_rank,
    )


def longest_prompt(record: TensorRtLlmRecord, *, chunked_context: bool) -> int:
    """Tokens of the longest prompt that an engine takes: without chunks it must fit one step."""
    if chunked_context or not record.max_num_tokens:
        return record.max_input_len
    return min(record.max_input_len, record.max_num_tokens)


def refusal(
    request: GenerationRequest, manifest: Manifest, info: EngineInfo, *, chunked_context: bool = True
) -> str | None:
    """Refusal of a request that `capabilities.refusal` lets pass, naming the field; None if there is none."""
    record = manifest.tensorrt_llm
    assert record is not None
    length = len(request.prompt_token_ids)
    if length > longest_prompt(record, chunked_context=chunked_context):
        why = "enable_chunked_context is off" if length <= record.max_input_len else "--max-input-len of its build"
        return (
            f"prompt_token_ids has {length} tokens: this engine takes prompts of at most "
            f"{longest_prompt(record, chunked_context=chunked_context)} ({why})"
        )
    if request.min_tokens and len(request.stop_token_ids) > 1:
        # Only the end token's score is held down until there are enough tokens.
        return (
            f"min_tokens is not supported by the engine {info.engine} where there are several end tokens "
            f"({len(request.stop_token_ids)} here, the model's own among them): it can hold back one"
        )
    return None


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
