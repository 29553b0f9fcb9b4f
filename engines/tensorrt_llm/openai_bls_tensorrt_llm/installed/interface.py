"""Interface to TensorRT-LLM as builder and engine see it: plain values in, a few attributes of its objects out.

Nothing here imports tensorrt_llm. `api` is the one module that does; the engine, the builder and `build/verify.py` see
it through these types, and tests put a fake `tensorrt_llm` package underneath `api` instead.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from openai_bls.core.engine_types import Grammar, SamplingParams
from openai_bls.core.manifest import Dtype, NotNegative, Positive

Flow = Literal["tensorrt", "pytorch"]
"""`tensorrt` runs engines that were built ahead; `pytorch` loads the checkpoint itself (TensorRT-LLM 1.0 and later)."""
SchedulerPolicy = Literal["guaranteed_no_evict", "max_utilization"]
GuidedDecodingBackend = Literal["", "xgrammar", "llguidance"]
Quant = Literal[
    "fp8",
    "fp8_rowwise",
    "fp8_block",
    "int8_weight_only",
    "int4_weight_only",
    "int8_sq",
    "awq",
    "w4a8_awq",
    "gptq",
    "int8_gptq",
    "nvfp4",
]
"""Values of `--quant`; `api` knows the `QuantAlgo` of each."""
KvCacheDtype = Literal["auto", "fp8", "int8", "nvfp4"]


_FINAL = 1 << 16
_CANDIDATE = re.compile(r"rc(\d+)")


class Version(msgspec.Struct, frozen=True, order=True):
    """Version of TensorRT-LLM, in the order of its releases and their candidates."""

    major: int
    minor: int
    patch: int = 0
    candidate: int = 0
    """Number of a release candidate; 0 stands before all of them, so "since 1.3" has those of 1.3 in it."""

    @classmethod
    def parse(cls, text: str) -> Version:
        """Version of a text such as `1.2.0` or `1.2.0rc6.post2`; `1.2` is where its candidates begin.

        Raises:
            ValueError: it does not begin with two numbers.
        """
        parts = text.split(".")
        if len(parts) < 2:
            raise ValueError(text)
        major, minor = int(parts[0]), int(_leading_digits(parts[1]) or "x")
        if len(parts) == 2:
            return cls(major, minor)
        candidate = _CANDIDATE.search(parts[2])
        return cls(major, minor, int(_leading_digits(parts[2]) or 0), int(candidate[1]) if candidate else _FINAL)

    def __str__(self) -> str:
        candidate = f"rc{self.candidate}" if 0 < self.candidate < _FINAL else ""
        return f"{self.major}.{self.minor}.{self.patch}{candidate}"


def _leading_digits(text: str) -> str:
    return text[: len(text) - len(text.lstrip("0123456789"))]


class LoraAdapter(msgspec.Struct, frozen=True):
    """An adapter that requests may name."""

    name: str
    path: Path
    """A Hugging Face PEFT directory."""
    number: Positive
    """Unique among the engine's adapters: `LoRARequest`'s `lora_int_id`."""


class LlmOptions(msgspec.Struct, frozen=True):
    """Options of loading an engine or a checkpoint for serving."""

    model: Path
    """The engine's directory (flow `tensorrt`) or the checkpoint's (`pytorch`)."""
    flow: Flow
    max_batch_size: Positive
    max_model_len: Positive
    """Tokens of prompt and output together."""
    max_num_tokens: NotNegative = 0
    """Tokens of one step; 0 leaves it to TensorRT-LLM (`pytorch`) or to what the engine was built with."""
    max_beam_width: Positive = 1
    dtype: Dtype = "auto"
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    tokenizer: Path | None = None
    """Directory of the tokenizer for guided decoding; prompts and outputs are token ids all the same."""
    trust_remote_code: bool = False
    kv_cache_dtype: KvCacheDtype = "auto"
    kv_cache_free_gpu_mem_fraction: float | None = None
    """Share of the GPU memory that the weights leave, above 0 and below 1."""
    max_tokens_in_paged_kv_cache: NotNegative = 0
    """Tokens at most; 0 leaves it to `kv_cache_free_gpu_mem_fraction`, which else counts if it is less."""
    kv_cache_host_memory_bytes: NotNegative = 0
    kv_event_buffer: NotNegative = 0
    """KV events that it keeps until they are read; 0 makes none."""
    enable_kv_cache_reuse: bool | None = None
    """None leaves it to TensorRT-LLM: on, but for kinds of models that it turns it off for (from 1.3 on)."""
    max_attention_window_size: tuple[int, ...] = ()
    """One for all layers, or one each, cyclically; empty is the model's own."""
    enable_chunked_context: bool | None = None
    """None leaves it to TensorRT-LLM: off."""
    batch_scheduler_policy: SchedulerPolicy = "guaranteed_no_evict"
    guided_decoding_backend: GuidedDecodingBackend = ""
    """Empty is none."""
    gather_generation_logits: bool = False
    """An engine of the flow `tensorrt` can give log-probabilities only with it."""
    lora: tuple[LoraAdapter, ...] = ()
    max_loras: NotNegative = 0
    max_lora_rank: NotNegative = 0
    lora_target_modules: tuple[str, ...] = ()
    """TensorRT-LLM's names; empty leaves them to it."""
    extra_llm_api_options: dict[str, Any] = {}
    """Further arguments of `LLM` as `llm_args.read` gives them (`pytorch`)."""


class Sampling(msgspec.Struct, frozen=True):
    """Sampling of one request in our terms; `sampling_params` writes it in the installed version's."""

    max_tokens: Positive
    end_id: int | None
    """Token id that ends the output; None is `ignore_eos`: only `max_tokens` does."""
    pad_id: int | None
    stop_token_ids: tuple[int, ...] = ()
    """Further token ids that end the output."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: NotNegative = 0
    params: SamplingParams = SamplingParams()
    vocab_size: Positive = 1
    """Length of the tensor for `logit_bias`."""
    logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def top_k(self) -> int:
        """`top_k`, or 0 (off) where it keeps every token."""
        return self.params.top_k if self.params.top_k < self.vocab_size else 0


class Completion(Protocol):
    """Attributes read of a `CompletionOutput`. The object changes while a stream runs."""

    index: int
    token_ids: Sequence[int]
    """All so far; a matched stop sequence is cut off **after** it was streamed."""
    logprobs: Any
    """One entry per token: `{token_id: Logprob(logprob, rank)}`, or plain floats. Of all tokens so far, or in
    0.20 of those alone that the newest response brought to a TensorRT engine's output."""
    finish_reason: str | None
    """`stop`, `length`, `timeout` or `cancelled`."""
    stop_reason: int | str | None


class Output(Protocol):
    """Attributes read of a `RequestOutput`, which is also the handle of the running request."""

    outputs: Sequence[Completion]
    finished: bool
    prompt_token_ids: Sequence[int]
    """Prompt as TensorRT-LLM reads it, each image expanded, by ids of its own for images in some models."""

    def __aiter__(self) -> AsyncIterator[Output]:
        """Yields itself, changed, after every step that brought something."""

    def abort(self) -> None:
        """Stop the request; the iteration ends soon after. On one that has ended it does nothing."""


class Llm(Protocol):
    """A loaded `LLM`."""

    def shutdown(self) -> None:
        """Free the GPUs and end the ranks. The process does not exit before."""


class BuildSpec(msgspec.Struct, frozen=True):
    """An engine of the flow `tensorrt` to build. Written as JSON for the process that builds."""

    model: Path
    """The checkpoint's directory."""
    output: Path
    """An empty directory for the engine."""
    workspace: Path
    """A directory on the same disk for intermediate files."""
    max_batch_size: Positive
    max_input_len: Positive
    max_seq_len: Positive
    max_num_tokens: Positive
    max_beam_width: Positive = 1
    dtype: Dtype = "auto"
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    quant_algorithm: str = ""
    """Name in TensorRT-LLM's `QuantAlgo`; empty leaves the weights as they are."""
    kv_cache_dtype: KvCacheDtype = "auto"
    calib_dataset: str = ""
    """A local directory, or the name of a data set on the hub; empty is TensorRT-LLM's own choice."""
    calib_size: Positive = 512
    calib_max_seq_length: Positive = 512
    workers: Positive = 1
    """Processes that build ranks side by side."""
    plugins: dict[str, str] = {}
    """`PluginConfig` fields by their names: `gemm_plugin: auto`, `use_paged_context_fmha: enable`."""
    multiple_profiles: bool = False
    gather_logits: bool = False
    lora_dirs: tuple[Path, ...] = ()
    lora_target_modules: tuple[str, ...] = ()
    max_lora_rank: NotNegative = 0
    trust_remote_code: bool = False
