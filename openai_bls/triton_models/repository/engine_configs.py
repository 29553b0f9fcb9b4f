"""Config.pbtxt of the models around an engine: literal values, from typed settings."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.core.settings import EngineSettings, OfficialSettings
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Model, Queue
from openai_bls.triton_models.tensors.models import ENSEMBLE, TENSORRT_LLM, ensemble, tensorrt_llm_bls


def engine_model(settings: EngineSettings, queue: Queue | None = None, suffix: str = "") -> Model:
    """Declaration of the model that runs an engine by our own model.py.

    Args:
        settings: settings of the engine.
        queue: Triton's queue before it.
        suffix: suffix of a further engine; empty for the default one.
    """
    given = msgspec.structs.asdict(settings)
    # Of an engine's process: some have a default, which is not written.
    usual = msgspec.structs.asdict(EngineSettings())
    process = set(EngineSettings.__struct_fields__) - set(OfficialSettings.__struct_fields__)
    changed = {name: value for name, value in given.items() if name not in process or value != usual[name]}
    return msgspec.structs.replace(
        TENSORRT_LLM, name=model_name(suffix), queue=queue, parameters=parameters_as_text(changed)
    )


def model_name(suffix: str) -> str:
    """Name of an engine's model."""
    return f"{TENSORRT_LLM.name}_{suffix}" if suffix else TENSORRT_LLM.name


def render_configs(engine: Model) -> dict[str, str]:
    """Name of a model → the text of its config.pbtxt: of the engine and, for the default one, of `text_models`."""
    models = [engine, *(text_models(engine) if engine.name == TENSORRT_LLM.name else ())]
    return {model.name: render(model) for model in models}


def text_models(engine: Model) -> list[Model]:
    """`ensemble` and `tensorrt_llm_bls` around the default engine's model. The `max_batch_size` of ensembles is the
    engine's if that is smaller; around a foreign backend, characters that several of their streamed responses share
    come out broken, as they do officially."""
    return [
        msgspec.structs.replace(model, max_batch_size=min(model.max_batch_size, engine.max_batch_size))
        if model.steps
        else model
        for model in (ensemble(ENSEMBLE.name, engine), tensorrt_llm_bls(engine))
    ]


def parameters_as_text(given: dict[str, Any], always: frozenset[str] = frozenset()) -> dict[str, str]:
    """Parameters that are set, or that are written in any case, as text."""
    return {name: _text(value) for name, value in given.items() if value not in (None, "") or name in always}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
