"""Calls of the installed TensorRT-LLM, version 0.20 or later.

Nothing of tensorrt_llm is imported before it is called. What differs from version to version is read from the fields of
the installed classes (`module`), and from `versions` where they have none. `tests_tensorrt_llm/contracts` holds what is
called against each version.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from openai_bls.core.machine.nvidia_smi import InstalledGpu, visible_gpus
from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.media import MediaPrompt
from openai_bls_tensorrt_llm.installed import images, llm_args, speculation, versions
from openai_bls_tensorrt_llm.installed.build import build
from openai_bls_tensorrt_llm.installed.interface import (
    BuildSpec,
    Flow,
    Llm,
    LlmOptions,
    LoraAdapter,
    Output,
    Sampling,
    Version,
)
from openai_bls_tensorrt_llm.installed.module import TensorRtLlm, clear_mpi
from openai_bls_tensorrt_llm.installed.sampling_params import sampling_params
from openai_bls_tensorrt_llm.legacy.ranks.processes import RankProcesses

logger = logging.getLogger(__name__)

_LLMAPI = "tensorrt_llm.llmapi"

# What TensorRT-LLM raises for one request while the executor goes on (executor/utils.py). The built-in ones come from
# its reading of one request's response.
_OF_THE_REQUEST = {"RequestError", "RequestSpecificException"}
_BUILT_IN = (AssertionError, AttributeError, LookupError, TypeError, ValueError)

# How long to wait for statistics: long enough for what is there already.
_STATISTICS_S = 0.001


def installed() -> Api:
    """The installed TensorRT-LLM. Imports it, which takes up to half a minute.

    Raises:
        EngineLoadError: it is missing, broken or older than 0.20; one sentence.
    """
    return Api(TensorRtLlm.installed())


class _Opened:
    """A loaded `LLM`, with what it was loaded for."""

    def __init__(self, llm: Any, options: LlmOptions) -> None:
        self.llm = llm
        self.options = options
        self.ranks = RankProcesses()

    def shutdown(self) -> None:
        """Free the GPUs and end the ranks."""
        self.llm.shutdown()


class Api:
    """The installed TensorRT-LLM."""

    def __init__(self, package: TensorRtLlm) -> None:
        self._package = package
        self.version: Version = package.version
        self.version_text: str = package.version_text

    def open(self, options: LlmOptions) -> Llm:
        """Load a model for serving. Takes minutes; from any thread.

        Raises:
            EngineLoadError: this version cannot honour `options`; one sentence.
            Exception: TensorRT-LLM's own.
        """
        if options.extra_llm_api_options:
            # Another version may have placed the checkpoint, and a draft model may be gone.
            read = llm_args.read(options.extra_llm_api_options, self.version)
            options = msgspec.structs.replace(options, extra_llm_api_options=read)
        self._require(options)
        clear_mpi()
        arguments = self._arguments(options)
        logger.info("loading %s with TensorRT-LLM %s (%s)", options.model, self.version_text, options.flow)
        return _Opened(self._package.llm_class(options.flow)(str(options.model), **arguments), options)

    def supported(self, options: LlmOptions) -> tuple[str, ...]:
        """Fields that requests to such a model may use, but for `stop_words` and those that `engine_info` adds."""
        names = set(versions.sampling_fields(options.flow, self.version))
        if options.flow == "tensorrt" and not options.gather_generation_logits:
            names.discard("logprobs")
        drafting = speculation.speculation(options.extra_llm_api_options, self.version)
        if drafting is not None:
            names &= speculation.FIELDS
        return tuple(sorted(names))

    def grammar_kinds(self, options: LlmOptions) -> tuple[str, ...]:
        """Values of `engine_types.Grammar.kind` that it takes."""
        return versions.grammar_kinds(options.flow, options.guided_decoding_backend, self.version)

    def generate(
        self,
        llm: Llm,
        prompt_token_ids: list[int],
        sampling: Sampling,
        lora: LoraAdapter | None,
        media: MediaPrompt | None = None,
    ) -> Output:
        """Start a streamed request. From the thread of the event loop that will iterate over it.

        With images it takes as long as TensorRT-LLM's processor of the model, tens of milliseconds for each: what it
        returns can be iterated over on no other loop than that of this thread.

        Args:
            llm: the loaded model.
            prompt_token_ids: token ids of the prompt, each image expanded.
            sampling: sampling parameters of the request.
            lora: adapter of the request; None is the base model.
            media: images of the prompt; None if it is text alone.

        Raises:
            ValueError: this version cannot honour `sampling`; the message names the field.
        """
        assert isinstance(llm, _Opened)
        arguments: dict[str, Any] = {}
        if lora is not None:
            request = self._package.name("tensorrt_llm.executor.LoRARequest")
            arguments["lora_request"] = self._package.make(
                request, lora_name=lora.name, lora_int_id=lora.number, lora_path=str(lora.path)
            )
        params = sampling_params(self._package, llm.options, sampling)
        inputs = {"prompt_token_ids": prompt_token_ids} if media is None else images.inputs(media)
        output: Output = llm.llm.generate_async(inputs, sampling_params=params, streaming=True, **arguments)
        return output

    def healthy(self, llm: Llm) -> bool:
        """False once the executor has failed, by its own check and flags, its background errors, and its ranks' futures
        and processes.

        Asks the executor nothing; from any thread. One that dies tells nobody, and its requests would wait for ever.
        """
        assert isinstance(llm, _Opened)
        executor = getattr(llm.llm, "_executor", None)
        if executor is None or any(getattr(executor, flag, False) for flag in ("doing_shutdown", "doing_pre_shutdown")):
            return False
        # Looked at only when a further response comes, which may never be; then it shuts itself down.
        errors = getattr(executor, "_error_queue", None)
        if errors is not None and not errors.empty():
            return False
        # They are done only when a rank has ended. 0.20 puts no error into the queue then.
        if any(future.done() for future in getattr(executor, "mpi_futures", ())) or not llm.ranks.alive():
            return False
        # Of newer versions.
        check = getattr(llm.llm, "_check_health", None)
        return check is None or bool(check())

    def is_of_the_request(self, error: Exception) -> bool:
        """True if `error` is of one request. The executor may have ended by it all the same: see `healthy`."""
        names = {cls.__name__ for cls in type(error).__mro__}
        return bool(names & _OF_THE_REQUEST) or isinstance(error, _BUILT_IN)

    async def read_statistics(self, llm: Llm) -> list[Any]:
        """Throw away the executor's statistics of its iterations, which else pile up in this process.

        Takes some milliseconds. From the event loop that requests are started on, once one was.

        Returns:
            The KV events that were among them.
        """
        assert isinstance(llm, _Opened)
        read: list[Any] = []
        for statistics in (llm.llm.get_stats_async, llm.llm.get_kv_cache_events_async):
            read = []
            async for one in statistics(timeout=_STATISTICS_S):
                read.append(one)
                # Else those that are there are read without a turn for the requests.
                await asyncio.sleep(0)
        return read

    def build(self, spec: BuildSpec) -> None:
        """Convert, quantize, build and save an engine into `spec.output`. Takes minutes to hours.

        Raises:
            EngineLoadError: this version cannot build it; one sentence.
            Exception: TensorRT-LLM's own.
        """
        versions.require_flow("tensorrt", self.version, self.version_text)
        clear_mpi()
        build(self._package, spec)

    def refusal(self, values: dict[str, Any]) -> str:
        """Refusal of further arguments of `LLM` by the installed classes; empty if they take them."""
        if not values:
            return ""
        try:
            versions.require_flow("pytorch", self.version, self.version_text)
            made = llm_args.objects(self._package, llm_args.read(values, self.version))
            self._package.require_fields("LLM", self._package.llm_fields("pytorch"), made)
        except EngineLoadError as error:
            return str(error)
        return ""

    def architectures(self, flow: Flow) -> frozenset[str]:
        """Names of config.json's `architectures` that a flow has a model class for; empty if it does not tell.

        For `pytorch` it imports all model classes.
        """
        name = self._package.name
        try:
            if flow == "tensorrt":
                found = name("tensorrt_llm.models.MODEL_MAP")
                return frozenset(key for key, model in found.items() if hasattr(model, "from_hugging_face"))
            # Model classes register themselves when they are imported.
            name("tensorrt_llm._torch.models.AutoModelForCausalLM")
            return (
                frozenset(name("tensorrt_llm._torch.models.modeling_utils.MODEL_CLASS_MAPPING")) | self._lazy_models()
            )
        except Exception:  # a version without this flow, or whatever its import runs into
            logger.info("TensorRT-LLM %s does not tell its models (%s)", self.version_text, flow, exc_info=True)
            return frozenset()

    def _lazy_models(self) -> frozenset[str]:
        """Names of the architectures that 1.3 imports on demand."""
        try:
            return frozenset(self._package.name("tensorrt_llm._torch.models._arch_index.MODEL_ARCH_TO_MODULE"))
        except EngineLoadError:
            return frozenset()

    def gpus(self) -> list[InstalledGpu]:
        """The GPUs that this process sees."""
        return visible_gpus()

    def _require(self, options: LlmOptions) -> None:
        versions.require_flow(options.flow, self.version, self.version_text)
        backend = options.guided_decoding_backend
        if backend and not self.grammar_kinds(options):
            raise EngineLoadError(
                f"guided_decoding_backend {backend} is not for TensorRT engines: use xgrammar, or --flow pytorch"
            )
        if backend and options.tokenizer is None:
            raise EngineLoadError(f"guided_decoding_backend {backend} needs a tokenizer, and there is none")
        dtypes = versions.kv_cache_dtypes(options.flow, self.version)
        if options.kv_cache_dtype not in dtypes:
            raise EngineLoadError(
                f"--kv-cache-dtype {options.kv_cache_dtype} is not one that the PyTorch flow of TensorRT-LLM "
                f"{self.version_text} takes: {', '.join(dtypes)}"
            )
        refused = speculation.refusals(
            options.extra_llm_api_options,
            self.version,
            pipeline_parallel_size=options.pipeline_parallel_size,
            max_beam_width=options.max_beam_width,
            adapters=bool(options.lora),
            grammars=backend,
        )
        for sentence in refused:
            raise EngineLoadError(sentence)

    def _arguments(self, options: LlmOptions) -> dict[str, Any]:
        """Arguments of `LLM`, besides the model."""
        arguments: dict[str, Any] = {
            "skip_tokenizer_init": options.tokenizer is None,
            "trust_remote_code": options.trust_remote_code,
            "tensor_parallel_size": options.tensor_parallel_size,
            "pipeline_parallel_size": options.pipeline_parallel_size,
            "dtype": options.dtype,
            "max_batch_size": options.max_batch_size,
            "kv_cache_config": self._kv_cache(options),
            "scheduler_config": self._scheduler(options),
        }
        if options.enable_chunked_context is not None:
            arguments["enable_chunked_prefill"] = options.enable_chunked_context
        if options.tokenizer is not None:
            arguments["tokenizer"] = str(options.tokenizer)
        if options.max_num_tokens:
            arguments["max_num_tokens"] = options.max_num_tokens
        if options.guided_decoding_backend:
            arguments["guided_decoding_backend"] = options.guided_decoding_backend
        if options.gather_generation_logits:
            arguments["gather_generation_logits"] = True
        fields = self._package.llm_fields(options.flow)
        if "fail_fast_on_attention_window_too_large" in fields:
            # Else a KV cache that holds less than one sequence shortens what the model sees.
            arguments["fail_fast_on_attention_window_too_large"] = True
        if options.flow == "pytorch":
            own = {key: value for key, value in options.extra_llm_api_options.items() if key not in arguments}
            arguments |= llm_args.objects(self._package, own)
            arguments |= self._pytorch(options, fields)
        elif options.max_loras and "max_loras" in fields:
            # Later versions size their cache of adapters by the engine's configuration.
            arguments |= {"max_loras": max(4, options.max_loras), "max_cpu_loras": max(4, options.max_loras)}
        self._package.require_fields("LLM", fields, arguments)
        return arguments

    def _pytorch(self, options: LlmOptions, fields: frozenset[str]) -> dict[str, Any]:
        arguments: dict[str, Any] = {"max_seq_len": options.max_model_len}
        if options.max_beam_width > 1:
            arguments["max_beam_width"] = options.max_beam_width
        drafting = speculation.speculation(options.extra_llm_api_options, self.version)
        # The C++ decoder does not verify drafts.
        if versions.cpp_sampler(self.version) and drafting is None:
            if "sampler_type" in fields:
                arguments["sampler_type"] = "TRTLLMSampler"
            elif "enable_trtllm_sampler" in fields:
                arguments["enable_trtllm_sampler"] = True
        if options.max_loras:
            arguments["lora_config"] = self._package.make(
                self._package.lora_config(),
                lora_dir=[str(adapter.path) for adapter in options.lora],
                lora_target_modules=list(options.lora_target_modules),
                max_lora_rank=options.max_lora_rank,
                max_loras=options.max_loras,
                max_cpu_loras=options.max_loras,
            )
        return arguments

    def _kv_cache(self, options: LlmOptions) -> Any:
        values: dict[str, Any] = dict(options.extra_llm_api_options.get("kv_cache_config", {}))
        if options.enable_kv_cache_reuse is not None:
            values["enable_block_reuse"] = options.enable_kv_cache_reuse
        if options.kv_cache_free_gpu_mem_fraction is not None:
            values["free_gpu_memory_fraction"] = options.kv_cache_free_gpu_mem_fraction
        if options.max_tokens_in_paged_kv_cache:
            values["max_tokens"] = options.max_tokens_in_paged_kv_cache
        if options.kv_cache_host_memory_bytes:
            values["host_cache_size"] = options.kv_cache_host_memory_bytes
        if options.kv_event_buffer:
            values["event_buffer_max_size"] = options.kv_event_buffer
        if options.max_attention_window_size:
            values["max_attention_window"] = list(options.max_attention_window_size)
        if options.flow == "pytorch" and options.kv_cache_dtype != "auto":
            values["dtype"] = options.kv_cache_dtype
        return self._package.make(self._package.name(f"{_LLMAPI}.KvCacheConfig"), **values)

    def _scheduler(self, options: LlmOptions) -> Any:
        policies = self._package.name(f"{_LLMAPI}.CapacitySchedulerPolicy")
        given = options.extra_llm_api_options.get("scheduler_config", {})
        values = llm_args.objects(self._package, given, "SchedulerConfig")
        values["capacity_scheduler_policy"] = getattr(policies, options.batch_scheduler_policy.upper())
        return self._package.make(self._package.name(f"{_LLMAPI}.SchedulerConfig"), **values)
