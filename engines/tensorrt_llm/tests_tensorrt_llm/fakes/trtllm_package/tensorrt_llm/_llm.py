"""The two LLM classes."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensorrt_llm import _build, _model, _settings
from tensorrt_llm._executor import Executor
from tensorrt_llm._guided import Guides
from tensorrt_llm._recorded import options, table
from tensorrt_llm._result import IterationResult, RequestOutput
from tensorrt_llm._sampling_params import SamplingParams

_TYPES = ("KvCacheConfig", "SchedulerConfig", "BuildConfig", "CalibConfig", "QuantConfig", "LoraConfig")


class _Tokenizer:
    """As much of a tokenizer as SamplingParams asks for."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.folder = folder
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        path = folder / "tokenizer_config.json"
        named = json.loads(path.read_text()) if path.is_file() else {}
        eos = config.get("eos_token_id")
        self.eos_token_id = self._id(named.get("eos_token"), eos[0] if isinstance(eos, list) else eos)
        self.pad_token_id = self._id(named.get("pad_token"), config.get("pad_token_id"))

    def _id(self, token: Any, default: int | None) -> int | None:
        text = token["content"] if isinstance(token, dict) else token
        found: int | None = None if text is None else self._tokenizer.token_to_id(text)
        return default if found is None else found

    def encode(self, text: str) -> list[int]:
        """Without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class _LLM:
    """Common to both flows."""

    _flow = ""
    _args_name = ""

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._executor: Executor | None = None
        self._ids = itertools.count(1)
        self._stack = contextlib.ExitStack()
        self._check(kwargs)
        self.args = table.made(self._args_name)(
            model=model,
            tokenizer=tokenizer,
            tokenizer_mode=tokenizer_mode,
            skip_tokenizer_init=skip_tokenizer_init,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            **kwargs,
        )
        self._check_types()
        _settings.record_call(
            f"LLM.{self._flow}",
            {key: _build.dump(value) if _build._is_config(value) else value for key, value in vars(self.args).items()},
        )
        self._start_ranks()
        self._folder = Path(model)
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{model} is no directory, and there is no hub here")
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    def _check(self, kwargs: dict[str, Any]) -> None:
        if _settings.release() < (1, 0):
            return  # the model of the arguments refuses them there
        known = {*table.table()["classes"][self._args_name]["fields"], "_mpi_session", "backend"}
        for key in kwargs:
            if key not in known:
                raise ValueError(f"{type(self).__name__} got invalid argument: {key}")

    def _check_types(self) -> None:
        for name in _TYPES:
            key = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
            value = getattr(self.args, key, None)
            if value is not None and not isinstance(value, (table.made(name), dict)):
                raise ValueError(f"{key}: Input should be a valid dictionary or instance of {name}, got {value!r}")
        kv_cache = self.args.kv_cache_config
        windows = kv_cache.max_attention_window
        if windows is not None and (
            not isinstance(windows, list) or any(type(w) is not int or w <= 0 for w in windows)
        ):
            raise ValueError("kv_cache_config.max_attention_window must be a non-empty list of positive integers")
        if kv_cache.free_gpu_memory_fraction is not None and not 0 <= kv_cache.free_gpu_memory_fraction <= 1:
            raise ValueError("kv_cache_config.free_gpu_memory_fraction must be a float between 0 and 1")
        if self.args.guided_decoding_backend not in (None, "xgrammar", "llguidance"):
            raise ValueError("guided_decoding_backend: Input should be 'xgrammar' or 'llguidance'")

    def _start_ranks(self) -> None:
        world = self.args.tensor_parallel_size * self.args.pipeline_parallel_size
        if world == 1:
            return
        inherited = [name for name in os.environ if re.match(r"OMPI_(?!MCA_)|OMPI_MCA_(orte_|ess)|PMIX_(?!MCA_)", name)]
        if inherited:
            raise RuntimeError(
                "MPI_ABORT was invoked: ranks cannot be spawned from a process that mpirun started "
                f"({inherited[0]} is set)"
            )

    def _open(self) -> None:
        raise NotImplementedError

    def _run(self, config_folder: Path, weights: Sequence[Path], max_batch_size: int, max_seq_len: int) -> None:
        if _settings.failure("load") in ("crash", "kill"):
            _settings.crash(str(_settings.failure("load")))
        if _settings.failure("load"):
            raise RuntimeError(_settings.failure("load"))
        config = json.loads((config_folder / "config.json").read_text())
        self._tokenizer = self._load_tokenizer(config)
        model = _model.load(config_folder, weights)
        guides = None
        backend = self.args.guided_decoding_backend
        if backend is not None:
            if self._tokenizer is None:
                raise AttributeError("'NoneType' object has no attribute 'get_vocab'")
            guides = Guides(backend, self._tokenizer.folder, self._tokenizer.eos_token_id, model.vocab_size, self._flow)
        drafter = getattr(self.args, "speculative_config", None)
        drafts = (getattr(drafter, name, None) for name in ("max_draft_len", "num_nextn_predict_layers"))
        draft_tokens = next(filter(None, drafts), 0)
        self._executor = Executor(model, guides, self._flow, max_batch_size, max_seq_len, draft_tokens)

    def _load_tokenizer(self, config: dict[str, Any]) -> _Tokenizer | None:
        if self.args.skip_tokenizer_init:
            return None
        folder = Path(self.args.tokenizer or self._folder)
        if not (folder / "tokenizer.json").is_file():
            _build.log(f"Failed to load tokenizer from {folder}", "W")
            return None
        return _Tokenizer(folder, config)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        streaming: bool = False,
        **kwargs: Any,
    ) -> RequestOutput:
        """Start a request; call it on the event loop that will read the answer."""
        if self._executor is None or self._executor.is_shutdown():
            raise RuntimeError("LLM is shutting down")
        known = table.table()["functions"]["LLM.generate_async"]["parameters"]
        for key in kwargs:
            if key not in known:
                raise TypeError(f"generate_async() got an unexpected keyword argument {key!r}")
        params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams or None, but got {type(params)}")
        if params.end_id is None:
            if self._tokenizer is None:
                raise ValueError(
                    "tokenizer is required to reset end_id if it is None, or you can explicitly specify the end_id "
                    "for sampling_params"
                )
            params._setup(self._tokenizer)
        prompt = self._prompt(inputs)
        self._check_arguments(len(prompt), params)
        adapter = None
        if lora_request is not None:
            if not self._has_lora():
                raise ValueError("LoRA is not enabled")
            adapter = Path(lora_request.lora_path)
        values = {key: value for key, value in vars(params).items() if value is not None and key != "embedding_bias"}
        bias = params.embedding_bias
        values["embedding_bias"] = None if bias is None else type(bias).__name__
        _settings.record_call("generate_async", {"prompt_token_ids": prompt, "streaming": streaming, **values})
        output = RequestOutput(next(self._ids), prompt, params, streaming, self._executor)
        self._executor.submit(output, params, adapter, streaming)
        return output

    def get_stats_async(self, timeout: float | None = 2) -> IterationResult:
        """What the executor has told of its iterations."""
        assert self._executor is not None
        return self._executor.statistics

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> IterationResult:
        """What it has told of its cache; None five times a second where there is nothing to tell."""
        assert self._executor is not None
        return self._executor.events

    def _prompt(self, inputs: Any) -> list[int]:
        if isinstance(inputs, dict) and "prompt_token_ids" in inputs:
            images = inputs.get("multi_modal_data", {}).get("image", ())
            if images:
                _settings.record_call("images", {"sizes": [image.size for image in images]})
            # Each image has as many tokens more as rows of pixels.
            return [*inputs["prompt_token_ids"], *[0 for image in images for _ in range(image.height)]]
        if isinstance(inputs, list) and all(isinstance(token, int) for token in inputs):
            return list(inputs)
        if isinstance(inputs, str):
            if self._tokenizer is None:
                raise ValueError("tokenizer is required to tokenize string prompt")
            return self._tokenizer.encode(inputs)
        raise TypeError(f"The inputs must be type str or list of int, but got {type(inputs)}")

    def _check_arguments(self, prompt_length: int, params: Any) -> None:
        raise NotImplementedError

    def _has_lora(self) -> bool:
        return self.args.enable_lora or self.args.lora_config is not None

    def shutdown(self) -> None:
        """End the executor; without it the process never ends."""
        if self._executor is not None:
            try:
                self._executor.shutdown()
                _settings.record_call("shutdown", {})
            finally:
                self._stack.close()
            self._executor = None
        self._stack.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if getattr(self, "_executor", None) is not None:
            self.shutdown()


def _signature() -> inspect.Signature:
    """Of `LLM.generate_async`, as the table has it."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name, field in table.table()["functions"]["LLM.generate_async"]["parameters"].items():
        default = inspect.Parameter.empty if field.get("required") else field["default"]
        parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
    return inspect.Signature(parameters)


_LLM.generate_async.__signature__ = _signature()  # type: ignore[attr-defined]


class TensorRtLLM(_LLM):
    """`tensorrt_llm._tensorrt_engine.LLM`; `tensorrt_llm.LLM` before 1.0."""

    _flow = "tensorrt"
    _args_name = "TrtLlmArgs"

    def _check_types(self) -> None:
        super()._check_types()
        if self.args.guided_decoding_backend == "llguidance":
            raise ValueError("Unsupported guided decoding backend llguidance")
        if getattr(self.args.kv_cache_config, "dtype", "auto") != "auto":
            raise AssertionError("KvCacheConfig.dtype is not supported by the TensorRT backend.")

    def _open(self) -> None:
        args = self.args
        workspace = Path(self._stack.enter_context(tempfile.TemporaryDirectory("-llm-workspace", dir=args.workspace)))
        self._engine_dir = self._folder
        if not _build.is_engine(self._folder):
            args.build_config = self._build_config()
            args.calib_config = args.calib_config or table.made("CalibConfig")()
            self._engine_dir = workspace / "engine"
            _build.build(self._folder, self._engine_dir, args)
        config = json.loads((self._engine_dir / "config.json").read_text())
        if config["version"] != _settings.version():
            _build.log_cpp(f"Engine version {config['version']} found in the config file", "ERROR")
            raise RuntimeError("Failed to deserialize cuda engine.")
        self._built = SimpleNamespace(**config["build_config"])
        mapping = config["pretrained_config"]["mapping"]
        for key, ours in (("tp_size", args.tensor_parallel_size), ("pp_size", args.pipeline_parallel_size)):
            if ours not in (1, mapping[key]):
                raise ValueError(f"{key} {ours} is not consistent with the engine's {key} {mapping[key]}")
        self._check_limits()
        _build.log_cpp(
            f"Engine version {config['version']} found in the config file, assuming engine(s) built by new builder API."
        )
        ranks = [self._engine_dir / f"rank{rank}.engine" for rank in range(mapping["world_size"])]
        missing = [path.name for path in ranks if not path.is_file()]
        if missing:
            raise RuntimeError(f"[TensorRT-LLM][ERROR] Error opening engine file: {missing[0]}")
        unpacked = workspace / "checkpoint"
        unpacked.mkdir()
        _build.unpack_config(self._engine_dir, unpacked)
        if args.tokenizer is None:
            args.tokenizer = str(self._engine_dir)
        max_seq_len = self._built.max_seq_len or 2048
        self._run(unpacked, ranks, args.max_batch_size or self._built.max_batch_size, max_seq_len)

    def _build_config(self) -> Any:
        args = self.args
        if args.build_config is not None:
            return args.build_config
        names = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width", "max_input_len")
        return table.made("BuildConfig")(**{name: getattr(args, name) for name in names if getattr(args, name)})

    def _check_limits(self) -> None:
        for name in ("max_batch_size", "max_num_tokens"):
            asked, built = getattr(self.args, name), getattr(self._built, name)
            if asked is None or asked <= built:
                continue
            if _settings.release() < (1, 2):
                raise ValueError(f"{name} [{asked}] is greater than build_config.{name} [{built}] in build_config")
            _build.log(f"{name} [{asked}] is overridden by build_config.{name} [{built}] in build_config", "W")
            setattr(self.args, name, built)

    def _check_arguments(self, prompt_length: int, params: Any) -> None:
        limit = self._built.max_seq_len
        if limit and not self.args.enable_chunked_prefill and prompt_length + params.max_tokens > limit:
            raise ValueError(
                f"The sum of prompt length ({prompt_length}) and query length (0) max_tokens ({params.max_tokens}) "
                f"should not exceed max_seq_len ({limit})"
            )
        if params.prompt_logprobs and not self._built.gather_context_logits:
            raise ValueError(
                f"`sampling_params's prompt_logprobs={params.prompt_logprobs}` requires `gather_context_logits=True` "
                "in the `BuildConfig` when constructing the LLM."
            )
        if params.logprobs and not self.args.gather_generation_logits:
            raise ValueError(
                f"`sampling_params.logprobs={params.logprobs}` requires `gather_generation_logits=True` to be passed "
                "explicitly to the `LLM()` constructor."
            )
        if params.logprobs and not self._built.gather_generation_logits:
            raise ValueError("the engine was built without gather_generation_logits")

    def _has_lora(self) -> bool:
        return bool(self._built.plugin_config["lora_plugin"])

    def save(self, engine_dir: str) -> None:
        """Copy the engine that was built; of the checkpoint, only the tokenizer's files are in it."""
        if _settings.failure("save") == "disk":
            Path(engine_dir).mkdir(parents=True, exist_ok=True)
            shutil.copy(self._engine_dir / "config.json", engine_dir)
            raise OSError(28, "No space left on device", str(Path(engine_dir) / "rank0.engine"))
        _build.log(f"Save model to {engine_dir}")
        shutil.copytree(self._engine_dir, engine_dir, dirs_exist_ok=True)
        _settings.record_call("save", {"engine_dir": str(engine_dir)})


class TorchLLM(_LLM):
    """`tensorrt_llm.LLM` since 1.0."""

    _flow = "pytorch"
    _args_name = "TorchLlmArgs"

    def _check(self, kwargs: dict[str, Any]) -> None:
        classes = table.table()["classes"]
        only = [
            key
            for key in kwargs
            if key in classes.get("TrtLlmArgs", {"fields": ()})["fields"]
            and key not in classes["TorchLlmArgs"]["fields"]
        ]
        if only and _settings.release() >= (1, 0):
            raise ValueError(
                "The following arguments are specific to TensorRT backend and cannot be used with PyTorch backend: "
                f"{only}.\n"
                "Please use 'from tensorrt_llm._tensorrt_engine import LLM' instead to use the TensorRT backend."
            )
        super()._check(kwargs)

    def _check_types(self) -> None:
        super()._check_types()
        if _settings.release() >= (1, 3) and getattr(self.args, "sampler_type", "auto") == "TRTLLMSampler":
            raise ValueError("sampler_type: TRTLLMSampler was removed")
        for key, kind in options.classes().get("TorchLlmArgs", {}).items():
            value = getattr(self.args, key, None)
            known = options.classes().get(kind.rstrip("?!"))
            if value is not None and known is not None and not hasattr(type(value), "model_fields"):
                raise ValueError(f"{key}: Input should be an instance of {kind.rstrip('?!')}, got {value!r}")
        self._check_speculation()

    def _check_speculation(self) -> None:
        """As `validate_feature_combination` and `create_py_executor` of 1.0 to 1.2 do."""
        config = getattr(self.args, "speculative_config", None)
        if config is None:
            return
        if not type(config).__name__.endswith("DecodingConfig"):
            raise ValueError(f"speculative_config: {config!r} is no decoding config")
        if getattr(self.args, "sampler_type", "") == "TRTLLMSampler" or getattr(
            self.args, "enable_trtllm_sampler", False
        ):
            raise ValueError("speculative decoding and trtllm_sampler are not supported together")
        if self.args.guided_decoding_backend and _settings.release() < (1, 1):
            raise ValueError("Guided decoding is not supported with speculative decoding.")

    def _open(self) -> None:
        if _build.is_engine(self._folder):
            raise ValueError(
                f"Unrecognized model in {self._folder}. Should have a `model_type` key in its config.json."
            )
        lora = self.args.lora_config
        if lora is not None and len(lora.lora_dir) != 1:
            assert len(lora.lora_target_modules) >= 1, "Expecting at least one lora target module"
        config = json.loads((self._folder / "config.json").read_text())
        longest = int(config.get("max_position_embeddings") or 2048)
        max_seq_len = min(self.args.max_seq_len or longest, longest)
        self._run(
            self._folder, sorted(self._folder.glob("*.safetensors")), self.args.max_batch_size or 2048, max_seq_len
        )

    def _check_arguments(self, prompt_length: int, params: Any) -> None:
        if _settings.release() < (1, 2):
            if params.prompt_logprobs:
                raise ValueError("`prompt_logprobs` in sampling_params is not supported in the PyTorch backend yet.")
            if params.logprobs and params.logprobs > 1:
                raise ValueError(
                    f"PyTorch backend currently only supports `logprobs=1`. Received `logprobs={params.logprobs}`"
                )
        limit = self.args.max_num_tokens
        if _settings.release() >= (1, 0) and limit and not self.args.enable_chunked_prefill and prompt_length > limit:
            raise ValueError(
                f"The sum of prompt length ({prompt_length}), query length (0) should not exceed max_num_tokens "
                f"({limit})"
            )
