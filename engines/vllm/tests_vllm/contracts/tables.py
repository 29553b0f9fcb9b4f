"""The recorded tables of vLLM, for tests, and the names of it that the engine uses."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from tests_vllm.contracts.record import recorded

VERSIONS = tuple(f"0.{minor}" for minor in range(24, 34))


class Used(NamedTuple):
    """What is used of a class."""

    fields: tuple[str, ...] = ()
    """Fields, attributes and members."""
    calls: tuple[str, ...] = ()
    """Methods, each with the parameters that are given by name: `generate(lora_request, priority)`."""


_CORE = "vllm.v1.engine"
USED = {
    "vllm.SamplingParams": Used(
        (
            *("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty"),
            *("frequency_penalty", "logit_bias", "min_tokens", "max_tokens", "stop_token_ids", "ignore_eos"),
            *("logprobs", "prompt_logprobs", "detokenize", "output_kind", "skip_clone", "structured_outputs"),
            *("_bad_words_token_ids", "extra_args"),
        ),
        ("_validate_structured_outputs(model_config, structured_outputs_config, tokenizer)",),
    ),
    "vllm.PoolingParams": Used(("task", "dimensions", "use_activation", "extra_kwargs"), ("verify(model_config)",)),
    "vllm.sampling_params.StructuredOutputsParams": Used(("grammar", "_backend")),
    "vllm.sampling_params.RequestOutputKind": Used(("DELTA",)),
    "vllm.config.StructuredOutputsConfig": Used(("backend",)),
    "vllm.config.VllmConfig": Used(
        (
            *("model_config", "scheduler_config", "speculative_config", "structured_outputs_config"),
            *("kv_transfer_config", "parallel_config"),
        )
    ),
    "vllm.lora.request.LoRARequest": Used(("lora_name", "lora_int_id", "lora_path")),
    "vllm.outputs.RequestOutput": Used(
        ("outputs", "prompt_logprobs", "num_cached_tokens", "kv_transfer_params", "finished")
    ),
    "vllm.outputs.CompletionOutput": Used(("token_ids", "logprobs", "finish_reason", "stop_reason")),
    "vllm.logprobs.Logprob": Used(("logprob", "rank")),
    f"{_CORE}.EngineCoreRequest": Used(
        (
            *("request_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "arrival_time"),
            *("lora_request", "cache_salt", "data_parallel_rank", "priority", "external_req_id"),
        )
    ),
    f"{_CORE}.EngineCoreOutput": Used(
        (
            *("request_id", "new_token_ids", "new_logprobs", "new_prompt_logprobs_tensors", "finish_reason"),
            *("stop_reason", "prefill_stats", "pooling_output", "kv_transfer_params"),
        )
    ),
    f"{_CORE}.EngineCoreOutputs": Used(("outputs", "scheduler_stats")),
    f"{_CORE}.FinishReason": Used(("STOP", "LENGTH", "ABORT", "ERROR", "REPETITION")),
    f"{_CORE}.exceptions.EngineDeadError": Used(),
    f"{_CORE}.core_client.EngineCoreClient": Used(
        (),
        (
            "make_async_mp_client(vllm_config, executor_class, log_stats)",
            *("get_output_async", "add_request_async", "abort_requests_async", "reset_prefix_cache_async"),
            *("get_supported_tasks_async",),
            *("add_lora_async", "remove_lora_async", "shutdown"),
        ),
    ),
    f"{_CORE}.core_client.AsyncMPClient": Used(
        (), ("get_output_async", "add_request_async", "abort_requests_async", "add_lora_async", "remove_lora_async")
    ),
    f"{_CORE}.input_processor.InputProcessor": Used(
        ("renderer",), ("process_inputs(request_id, prompt, params, supported_tasks)",)
    ),
    f"{_CORE}.async_llm.AsyncLLM": Used(
        (),
        (
            "from_vllm_config(vllm_config, usage_context, stat_loggers)",
            *(
                "generate(lora_request, priority)",
                "encode(pooling_params, lora_request)",
                "get_supported_tasks",
                "abort",
                "add_lora",
                "remove_lora",
                "reset_prefix_cache",
                "shutdown",
            ),
        ),
    ),
    "vllm.v1.core.sched.async_scheduler.AsyncScheduler": Used(
        ("vllm_config", "max_num_scheduled_tokens", "num_spec_tokens", "waiting", "running"), ("schedule",)
    ),
    "vllm.v1.executor.Executor": Used((), ("get_class",)),
    "vllm.usage.usage_lib.UsageContext": Used(("OPENAI_API_SERVER",)),
    "vllm.v1.metrics.stats.SchedulerStats": Used(("num_waiting_reqs", "kv_cache_usage", "spec_decoding_stats")),
    "vllm.v1.metrics.stats.PrefillStats": Used(("num_cached_tokens",)),
    "vllm.v1.spec_decode.metrics.SpecDecodingStats": Used(("num_draft_tokens", "num_accepted_tokens")),
    "vllm.v1.metrics.loggers.StatLoggerBase": Used((), ("record",)),
    "vllm.v1.outputs.LogprobsLists": Used(("logprob_token_ids", "logprobs", "sampled_token_ranks")),
    "vllm.v1.outputs.LogprobsTensors": Used(("logprob_token_ids", "logprobs")),
    "vllm.v1.structured_output.backend_guidance.GuidanceBackend": Used((), ("compile_grammar",)),
}
"""Class, by the path at which it is imported → what is used of it."""

ENGINE_ARGS = (
    *("model", "served_model_name", "tokenizer", "skip_tokenizer_init", "dtype", "quantization", "max_model_len"),
    *("max_num_seqs", "tensor_parallel_size", "pipeline_parallel_size", "trust_remote_code", "generation_config"),
    *("disable_log_stats", "enable_log_requests", "max_logprobs", "logprobs_mode", "enable_prefix_caching"),
    *("enable_chunked_prefill", "enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank", "enforce_eager"),
    *("structured_outputs_config", "runner", "convert"),
)
"""Fields of `AsyncEngineArgs` that the engine sets itself."""


_tables = cache(recorded)


def table(version: str) -> dict[str, Any]:
    """The table of a version, such as `0.32`."""
    return _tables()[version]


def members(version: str, path: str, kind: str) -> dict[str, str]:
    """Fields or methods of a recorded class, those of its recorded bases included."""
    classes = table(version)["classes"]
    entry = classes[path]
    found: dict[str, str] = {}
    for base in entry["bases"]:
        for other in classes:
            if other.rpartition(".")[2] == base.rpartition(".")[2] and other != path:
                found |= members(version, other, kind)
    found |= entry[kind]
    return found
