"""Triton's C++ backend for TensorRT-LLM: its settings, and the config.pbtxt of a model that it runs.

The backend knows the official tensors only, so the ensembles around it lack what our own model.py adds to them.

Source of names and defaults: triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt and
triton_backend/inflight_batcher_llm/src/model_instance_state.cc of TensorRT-LLM 0.20 to 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from openai_bls.core.manifest import ENGINE_FOLDER, EngineLoadError, Manifest, NotNegative, Positive
from openai_bls.core.nearest import meant_or_known
from openai_bls.core.settings import OfficialSettings, wrong_values
from openai_bls.engines.plugin import Lazy
from openai_bls.triton_models.repository.engine_configs import model_name, parameters_as_text
from openai_bls.triton_models.repository.foreign_backend import ForeignBackend
from openai_bls.triton_models.tensors.declaration import Model, Queue, Tensor
from openai_bls.triton_models.tensors.models import TENSORRT_LLM
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord

CPP_BACKEND = "tensorrtllm"
_VERSION = "1"
GRAMMAR_VOCABULARY = "xgrammar_tokenizer_info.json"
"""File in the engine's folder with the tokenizer's data that the C++ backend needs for grammars."""

# Ours, or names of releases before 0.20.
_NOT_OFFICIAL = {"random_seed", "min_length", "decode_context", "decode_final"}
_REQUIRED = {"input_lengths", "request_output_len"}
_RAGGED = {"input_ids", "decoder_input_ids", "stop_words_list", "bad_words_list", "embedding_bias"}
_RAGGED_OPTIONS = {"guided_decoding_guide_type", "guided_decoding_guide", "lora_weights", "lora_config"}
_FRACTION = Annotated[float, msgspec.Meta(gt=0, le=1)]
_GPUS = r"^([0-9]+([,;][0-9]+)*)?$"


class CppSettings(OfficialSettings, frozen=True, forbid_unknown_fields=True):
    """`parameters` of the C++ backend beside those of `OfficialSettings`, with its names. None leaves one out."""

    verify_weights: None = None
    """The backend compares nothing; `build/verify.py` does."""
    lora_watch_dir: Literal[""] = ""
    """The backend gets adapters from its clients."""
    max_beam_width: Positive = 1
    gpt_model_type: Literal["inflight_fused_batching", "inflight_batching", "V1"] = "inflight_fused_batching"
    gpt_model_path: str = ""
    """Absolute path of the engine where the server runs."""
    sink_token_length: Positive | None = None
    kv_cache_onboard_blocks: bool | None = None
    cancellation_check_period_ms: Positive | None = None
    """Milliseconds; the backend's own is 100."""
    stats_check_period_ms: Positive | None = None
    recv_poll_period_ms: NotNegative | None = None
    iter_stats_max_iterations: NotNegative | None = None
    request_stats_max_iterations: NotNegative | None = None
    normalize_log_probs: bool = False
    """The backend's own default is true: log-probabilities among the top_k tokens alone, so 0 for a greedy one."""
    gpu_device_ids: Annotated[str, msgspec.Meta(pattern=_GPUS)] = ""
    """Ids separated by commas, those of several instances by semicolons; empty is all, for one instance."""
    participant_ids: str = ""
    """MPI ranks, separated by commas: for the orchestrator mode without spawned processes."""
    num_nodes: Positive | None = None
    gpu_weights_percent: _FRACTION | None = None
    lora_cache_optimal_adapter_size: Positive | None = None
    lora_cache_max_adapter_size: Positive | None = None
    lora_cache_gpu_memory_fraction: _FRACTION | None = None
    lora_cache_host_memory_bytes: NotNegative | None = None
    lora_prefetch_dir: str = ""
    decoding_mode: Literal["", "top_k", "top_p", "top_k_top_p", "beam_search"] = ""
    enable_context_fmha_fp32_acc: bool | None = None
    multi_block_mode: bool | None = None
    cuda_graph_mode: bool | None = None
    cuda_graph_cache_size: NotNegative | None = None
    executor_worker_path: str = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
    """Path of the orchestrator mode's worker in NGC images."""
    tokenizer_dir: str = ""
    """The backend wants the parameter and does not use it."""
    xgrammar_tokenizer_info_path: str = ""
    """Absolute path of `GRAMMAR_VOCABULARY`; empty unless `guided_decoding_backend` is xgrammar."""

    @property
    def gpus(self) -> tuple[tuple[str, ...], ...]:
        """`gpu_device_ids` of each instance."""
        return tuple(tuple(ids.split(",")) for ids in self.gpu_device_ids.split(";"))


# It does not load without these, whatever they hold.
_ALWAYS = frozenset({"tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"})


def engine_model(manifest: Manifest, settings: CppSettings, queue: Queue | None = None, suffix: str = "") -> Model:
    """Declaration of the model that runs the engine of `manifest`.

    Args:
        manifest: manifest of the engine.
        settings: settings of the backend.
        queue: Triton's queue before it.
        suffix: suffix of a further engine; empty for the default one.

    Raises:
        EngineLoadError: the settings do not suit the engine.
    """
    ranks = TensorRtLlmRecord.of(manifest).world_size
    for gpus in settings.gpus if settings.gpu_device_ids else ():
        if len(gpus) != ranks:
            raise EngineLoadError(
                f"gpu_device_ids {settings.gpu_device_ids}: an instance of this engine has {ranks} "
                f"GPU{'s' if ranks > 1 else ''} (tp x pp), and {','.join(gpus)} are {len(gpus)}; the GPUs "
                "of several instances are separated by semicolons"
            )
    return cpp_model(settings, manifest.max_batch_size, queue, model_name(suffix))


def cpp_model(
    settings: CppSettings, max_batch_size: int, queue: Queue | None = None, name: str = TENSORRT_LLM.name
) -> Model:
    """Declaration of a model that the C++ backend runs.

    Args:
        settings: settings of the backend.
        max_batch_size: requests that Triton may hand over together; the engine's own batch may be larger.
        queue: Triton's queue before it.
        name: name of the model.

    Raises:
        EngineLoadError: the settings contradict each other.
    """
    if not settings.gpt_model_path:
        raise EngineLoadError("the C++ backend needs the engine's path in its config.pbtxt (gpt_model_path)")
    if not Path(settings.gpt_model_path).is_absolute():
        raise EngineLoadError(f"gpt_model_path {settings.gpt_model_path} is not an absolute path")
    if settings.guided_decoding_backend not in ("", "xgrammar"):
        raise EngineLoadError("the C++ backend holds outputs to a grammar by xgrammar only")
    if bool(settings.guided_decoding_backend) != bool(settings.xgrammar_tokenizer_info_path):
        raise EngineLoadError("guided_decoding_backend needs xgrammar_tokenizer_info_path, and neither goes alone")
    return Model(
        name=name,
        backend=CPP_BACKEND,
        max_batch_size=max_batch_size,
        decoupled=True,
        queue=queue,
        instances=len(settings.gpus),
        inputs=tuple(_official(t) for t in (*TENSORRT_LLM.inputs, *_LORA) if t.name not in _NOT_OFFICIAL),
        outputs=tuple(t for t in TENSORRT_LLM.outputs if t.name not in _NOT_OFFICIAL),
        parameters={
            "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
            **parameters_as_text(msgspec.structs.asdict(settings), _ALWAYS),
        },
        comment="The engine, run by Triton's C++ backend for TensorRT-LLM.",
    )


def cpp_settings(
    manifest: Manifest, settings: OfficialSettings, version_dir: Path, given: Mapping[str, str] | None = None
) -> CppSettings:
    """The C++ backend's settings for the engine in `version_dir`.

    Args:
        manifest: manifest of the engine.
        settings: settings that both backends have.
        version_dir: absolute path of the version folder, as the server will see it.
        given: further parameters by their official names.

    Raises:
        EngineLoadError: an unknown parameter, or a bad value.
    """
    engine_dir = version_dir / ENGINE_FOLDER
    values: dict[str, Any] = {
        **{name: getattr(settings, name) for name in OfficialSettings.__struct_fields__},
        "max_beam_width": TensorRtLlmRecord.of(manifest).max_beam_width,
        "gpt_model_path": str(engine_dir),
    }
    if settings.guided_decoding_backend:
        values["xgrammar_tokenizer_info_path"] = str(engine_dir / GRAMMAR_VOCABULARY)
    for key in given or {}:
        if key not in CppSettings.__struct_fields__:
            raise EngineLoadError(
                f"the C++ backend has no parameter {key!r} here; {meant_or_known(key, CppSettings.__struct_fields__)}"
            )
    try:
        return msgspec.convert({**values, **(given or {})}, CppSettings, strict=False)
    except msgspec.ValidationError as error:
        said = wrong_values(CppSettings, given or {}) or error
        raise EngineLoadError(f"bad parameter of the C++ backend: {said}") from None


def grammar_vocabulary(tokenizer_dir: Path, stop_token_ids: tuple[int, ...]) -> bytes:
    """The text of `GRAMMAR_VOCABULARY` for the tokenizer in `tokenizer_dir`.

    Raises:
        EngineLoadError: it has no tokenizer.json.
    """
    path = tokenizer_dir / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        data = msgspec.json.decode(text)
        vocabulary = data["model"]["vocab"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise EngineLoadError(f"cannot read {path.name} for guided decoding: {error}") from None
    # Unigram models list pieces with their scores, in the order of their ids; the others map pieces to ids.
    if isinstance(vocabulary, list):
        pieces = {piece[0]: number for number, piece in enumerate(vocabulary)}
    else:
        pieces = dict(vocabulary)
    pieces.update({added["content"]: added["id"] for added in data.get("added_tokens", ())})
    by_id = {number: piece for piece, number in pieces.items()}
    # An id that no token has must not move those after it.
    encoded = [by_id.get(number, f"<unused {number}>") for number in range(max(by_id) + 1)]
    return msgspec.json.encode(
        {"encoded_vocab": encoded, "tokenizer_str": text, "stop_token_ids": list(stop_token_ids)}
    )


_LORA = (
    Tensor("lora_weights", "FP16", (-1, -1), optional=True),
    Tensor("lora_config", "INT32", (-1, 3), optional=True),
)


def _official(tensor: Tensor) -> Tensor:
    return msgspec.structs.replace(
        tensor,
        optional=tensor.name not in _REQUIRED,
        ragged=tensor.name in _RAGGED | _RAGGED_OPTIONS,
    )


def strayed(model: Path, parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters that name a path elsewhere although the model has its own: name → the absolute path of its own.

    The backend takes absolute paths from config.pbtxt. A repository that was copied or moved keeps those of its old
    place, and would load an engine that is gone, or another one.

    Args:
        model: the folder of a model that the C++ backend runs.
        parameters: parameters of the model's config.pbtxt.
    """
    engine = model.absolute() / _VERSION / ENGINE_FOLDER
    own = {"gpt_model_path": engine, "xgrammar_tokenizer_info_path": engine / GRAMMAR_VOCABULARY}
    return {
        name: str(path)
        for name, path in own.items()
        # By a link it is the same place.
        if parameters.get(name) and path.exists() and Path(parameters[name]).resolve() != path.resolve()
    }


def _runs(manifest: Manifest) -> bool:
    return TensorRtLlmRecord.of(manifest).backend == "cpp"


def _without(manifest: Manifest) -> Manifest:
    record = msgspec.structs.replace(TensorRtLlmRecord.of(manifest), backend="python")
    return msgspec.structs.replace(manifest, record=record.fields())


BACKEND = ForeignBackend(
    name=CPP_BACKEND,
    settings=CppSettings,
    model=cpp_model,
    own_paths=strayed,
    client=Lazy("openai_bls_tensorrt_llm.legacy.client:GrpcEngineClient"),
    runs=_runs,
    without=_without,
)
