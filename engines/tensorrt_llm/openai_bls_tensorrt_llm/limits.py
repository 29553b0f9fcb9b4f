"""Limits of a TensorRT-LLM engine beyond its `EngineInfo`, whichever Triton backend runs it."""

from __future__ import annotations

from openai_bls.core.engine_types import EngineInfo, GenerationRequest
from openai_bls.core.manifest import Manifest
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord


def longest_prompt(record: TensorRtLlmRecord, *, chunked_context: bool) -> int:
    """Tokens of the longest prompt that an engine takes: without chunks it must fit one step."""
    if chunked_context or not record.max_num_tokens:
        return record.max_input_len
    return min(record.max_input_len, record.max_num_tokens)


def refusal(
    request: GenerationRequest, manifest: Manifest, info: EngineInfo, *, chunked_context: bool = True
) -> str | None:
    """Refusal of a request that `capabilities.refusal` lets pass, naming the field; None if there is none."""
    record = TensorRtLlmRecord.of(manifest)
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
