"""Settings of vLLM's engine as its log tells them, to show that two servers run the same engine."""

from __future__ import annotations

import re
from pathlib import Path

_ONE = {
    "version": r"Initializing a V1 LLM engine \(v([^)]+)\)",
    "dtype": r"Initializing a V1 .*?\bdtype=([\w.]+)",
    "max_model_len": r"Initializing a V1 .*?\bmax_seq_len=(\d+)",
    "quantization": r"Initializing a V1 .*?\bquantization=(\w+)",
    "kv_cache_dtype": r"Initializing a V1 .*?\bkv_cache_dtype=(\w+)",
    "enforce_eager": r"Initializing a V1 .*?\benforce_eager=(\w+)",
    "enable_prefix_caching": r"Initializing a V1 .*?\benable_prefix_caching=(\w+)",
    "enable_chunked_prefill": r"Initializing a V1 .*?\benable_chunked_prefill=(\w+)",
    "structured outputs": r"StructuredOutputsConfig\(backend='(\w+)'",
    "compilation mode": r"Initializing a V1 .*?'mode': <?([\w.]+)",
    "cudagraph_mode": r"Initializing a V1 .*?'cudagraph_mode': <?([\w.]+)",
    "largest CUDA graph": r"Initializing a V1 .*?'max_cudagraph_capture_size': (\d+)",
    "max_num_batched_tokens": r"max_num_batched_tokens=(\d+)",
    "asynchronous scheduling": r"Asynchronous scheduling is (\w+)",
    "attention": r"Using (?:AttentionBackendEnum\.)?(\w+)(?: attention)? backend",
    "FlashAttention": r"Using FlashAttention version (\d)",
    "model runner": r"[Uu]sing (?:the )?(V[12]) [Mm]odel [Rr]unner",
    "KV cache tokens": r"KV cache size: ([\d,]+) tokens",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in _ONE.items()}


def engine_settings(log: Path) -> dict[str, str]:
    """Settings by name, those that the log says nothing of left out; the last line of a kind counts."""
    found: dict[str, str] = {}
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            for name, pattern in _PATTERNS.items():
                if match := pattern.search(line):
                    found[name] = match[1]
    return {name: found[name] for name in _PATTERNS if name in found}


def differences(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """Names of settings that both logs tell, differently."""
    return [name for name in first if name in second and first[name] != second[name]]
