"""Tasks of a vLLM engine that pools prompts into numbers instead of generating: embeddings, scores and classes."""

from __future__ import annotations

import math
from typing import Any, Literal

from openai_bls.core.engine_types import EngineTask, GenerationRequest
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.not_finite import NotFiniteError

Task = Literal["generate", "embed", "score", "classify", "reward"]

_SCORED: tuple[Task, ...] = ("score", "classify", "reward")
"""Tasks whose numbers are scores."""

SERVED: dict[Task, EngineTask] = {
    "generate": "generate",
    "embed": "embeddings",
    "score": "score",
    "classify": "classify",
    "reward": "reward",
}
"""Task of the build → task of the engine."""

_CONVERT: dict[Task, str] = {"embed": "embed", **dict.fromkeys(_SCORED, "classify")}
"""Task of the build → vLLM's `convert`, which is its pooling task too."""


def engine_args(task: Task) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs` for a task."""
    return {} if task == "generate" else {"runner": "pooling", "convert": _CONVERT[task]}


def require(task: Task, supported: tuple[str, ...]) -> None:
    """Check that a loaded model is for a task that pools.

    Args:
        task: task of the build.
        supported: tasks that vLLM tells of the model.

    Raises:
        EngineLoadError: it is not; one sentence.
    """
    if _CONVERT[task] not in supported:
        raise EngineLoadError(
            f"vLLM does not {_CONVERT[task]} with this model, whose tasks are {', '.join(supported) or 'none'}: build "
            "it again with the --task that it is for"
        )


def facts(task: Task, model_config: Any) -> dict[str, Any]:
    """Fields of `EngineInfo` about what the engine pools, `supported` among them; {} for one that generates.

    Args:
        task: task of the build.
        model_config: vLLM's `ModelConfig`.
    """
    if task == "generate":
        return {}
    found: dict[str, Any] = {"task": SERVED[task], "supported": ("pooling",)}
    if task in _SCORED:
        found["supported"] = ("pooling", "use_activation")
        # Other models of vLLM take no token types, and fail whole at some.
        if getattr(model_config.hf_config, "type_vocab_size", 0) > 1:
            found["supported"] += ("compressed_token_type_ids",)
    if task in ("classify", "reward"):
        names = getattr(model_config.hf_config, "id2label", None) or {}
        found["labels"] = tuple(str(name) for _, name in sorted(names.items(), key=lambda item: int(item[0])))
    if task == "embed":
        found["embedding_size"] = int(model_config.embedding_size)
        if model_config.is_matryoshka:
            found["supported"] = ("pooling", "dimensions")
            found["matryoshka_dimensions"] = tuple(model_config.matryoshka_dimensions or ())
    return found


def pooling_params(request: GenerationRequest) -> dict[str, Any]:
    """Fields of vLLM's `PoolingParams`."""
    values: dict[str, Any] = {"task": request.pooling}
    if request.dimensions is not None:
        values["dimensions"] = request.dimensions
    if request.use_activation is not None:
        values["use_activation"] = request.use_activation
    types_from = request.compressed_token_type_ids
    if types_from is not None and types_from < len(request.prompt_token_ids):
        values["extra_kwargs"] = {"compressed_token_type_ids": types_from}
    return values


def numbers(pooling_output: Any) -> list[float]:
    """Numbers of an output, which vLLM has as a tensor.

    Raises:
        NotFiniteError: one of them is infinity or NaN.
    """
    found: list[float] = pooling_output.float().flatten().tolist()
    if not all(map(math.isfinite, found)):
        raise NotFiniteError
    return found
