"""Arguments of vLLM that `--extra-engine-args` may not have, each with the reason or the option to give."""

from __future__ import annotations

from typing import Any

_OPTIONS = {
    "model": "--model",
    "dtype": "--dtype",
    "quantization": "--quant",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-batch-size",
    "tensor_parallel_size": "--tp-size",
    "pipeline_parallel_size": "--pp-size",
    "trust_remote_code": "--trust-remote-code",
    "served_model_name": "--served-model-name",
    **dict.fromkeys(("enable_lora", "max_loras", "max_cpu_loras"), "--max-loras"),
    "max_lora_rank": "--max-lora-rank",
    **dict.fromkeys(("runner", "convert"), "--task"),
    "enable_prefix_caching": "--enable-kv-cache-reuse",
    "enable_chunked_prefill": "--enable-chunked-context",
}
"""Name → option of the build that sets it."""

_TOKENIZER = "the engine takes and gives token ids, and has the repository's own tokenizer"
_CHECKPOINT = "the checkpoint in the engine's folder is what is served"
_TEXT = "the engine takes text only"
_SAMPLING = "requests are sampled as documented"
_GRAMMAR = "openai_bls makes the grammars, thoughts included"
_METRICS = "vLLM's own metrics and traces are not served: the server has its own"
_CLASS = "it names a Python class, whose effect cannot be checked"
_SERVER = "it is an option of vLLM's server, which does not run here"

_REASONS = {
    **dict.fromkeys(("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init"), _TOKENIZER),
    **dict.fromkeys(("tokens_only", "renderer_num_workers", "io_processor_plugin"), _TOKENIZER),
    **dict.fromkeys(("revision", "code_revision", "hf_token", "hf_config_path", "config_format"), _CHECKPOINT),
    **dict.fromkeys(("download_dir", "model_weights", "ignore_patterns", "weight_transfer_config"), _CHECKPOINT),
    "pooler_config": "the checkpoint says how it pools",
    **dict.fromkeys(("generation_config", "override_generation_config"), "defaults and end tokens come with requests"),
    **dict.fromkeys(("logits_processors", "logprobs_mode", "max_logprobs", "watermark_config"), _SAMPLING),
    **dict.fromkeys(("diffusion_config", "return_sampling_mask", "kv_sharing_fast_prefill"), _SAMPLING),
    **dict.fromkeys(("enable_return_routed_experts", "aux_output_config", "enable_trace_replay"), _SAMPLING),
    **dict.fromkeys(("structured_outputs_config", "guided_decoding_backend", "reasoning_config"), _GRAMMAR),
    **dict.fromkeys(("reasoning_parser", "reasoning_parser_plugin"), _GRAMMAR),
    **dict.fromkeys(("enable_prompt_embeds", "allowed_local_media_path", "allowed_media_domains"), _TEXT),
    **dict.fromkeys(("media_io_kwargs", "enable_mm_embeds", "interleave_mm_strings", "video_pruning_rate"), _TEXT),
    **dict.fromkeys(("video_pruning_method", "default_mm_loras", "enable_tower_connector_lora"), _TEXT),
    **dict.fromkeys(("disable_chunked_mm_input", "skip_mm_profiling", "enable_mm_processor_stats"), _TEXT),
    **dict.fromkeys(("ec_transfer_config", "ec_manager_config"), _TEXT),
    "lora_target_modules": "adapters are applied in full",
    "max_lora_cls_labels": "the engine generates text",
    "disable_log_stats": "the engine reads the statistics",
    **dict.fromkeys(("enable_log_requests", "disable_log_requests", "max_log_len"), "prompts stay out of the log"),
    "stream_interval": "each step is sent",
    **dict.fromkeys(("max_num_queued_reqs", "max_num_queued_tokens"), "openai_bls bounds the queue"),
    **dict.fromkeys(("enable_sleep_mode", "sleep_mode_offload_cudagraph"), "nothing puts the engine to sleep"),
    **dict.fromkeys(("sleep_preserve_parameter_names", "sleep_mode_backend"), "nothing puts the engine to sleep"),
    "profiler_config": "nothing starts the profiler",
    **dict.fromkeys(("enable_elastic_ep", "elastic_ep_max_dp_size"), "nothing changes the number of processes"),
    "node_rank": "each machine's own is given where it is started: `openai-bls engine --option node_rank=...`",
    **dict.fromkeys(("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb"), _SERVER),
    **dict.fromkeys(("data_parallel_multi_port_external_lb", "shutdown_timeout"), _SERVER),
    **dict.fromkeys(("otlp_traces_endpoint", "collect_detailed_traces", "custom_histogram_buckets"), _METRICS),
    **dict.fromkeys(("show_hidden_metrics_for_version", "kv_cache_metrics", "kv_cache_metrics_sample"), _METRICS),
    **dict.fromkeys(("per_request_spec_decode_metrics", "enable_mfu_metrics", "cudagraph_metrics"), _METRICS),
    **dict.fromkeys(("scheduler_cls", "worker_cls", "worker_extension_cls", "model_class_overrides"), _CLASS),
    **dict.fromkeys(("host", "port", "uds", "api_key", "headless", "config", "root_path", "middleware"), _SERVER),
    **dict.fromkeys(("api_server_count", "uvicorn_log_level", "disable_uvicorn_access_log", "lora_modules"), _SERVER),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "allow_credentials", "allowed_origins"), _SERVER),
    **dict.fromkeys(("allowed_methods", "allowed_headers", "enable_request_id_headers"), _SERVER),
    **dict.fromkeys(("disable_frontend_multiprocessing", "disable_fastapi_docs"), _SERVER),
    "chat_template": "the chat template is the repository's own",
    "chat_template_content_format": "the chat template is the repository's own",
    **dict.fromkeys(("enable_auto_tool_choice", "tool_call_parser"), "openai_bls reads tool calls"),
}
"""Name → why it may not be given."""

_VALUES = {
    ("load_format", "dummy"): "its weights are random",
    ("distributed_executor_backend", "external_launcher"): "the engine starts its own processes",
}
"""Name and value → why that value may not be given."""


def refusal(name: str, value: Any) -> str | None:
    """Why an argument may not be given, or what to give instead; None if it may.

    Args:
        name: name of a field, in underscores.
        value: value of the field.
    """
    if name in _OPTIONS:
        return f"give {_OPTIONS[name]} to the build"
    if name.startswith("_"):
        return "it is vLLM's own"
    if name.startswith("mm_"):
        return _TEXT
    if isinstance(value, str) and (name, value) in _VALUES:
        return f"its value {value}: {_VALUES[name, value]}"
    return _REASONS.get(name)


def refused_names() -> frozenset[str]:
    """All names in the tables."""
    return frozenset((*_OPTIONS, *_REASONS, *(name for name, _ in _VALUES)))
