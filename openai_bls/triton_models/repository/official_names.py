"""Names of fill_template.py that are not settings here, and what there is instead."""

from __future__ import annotations

from openai_bls.triton_models.tensors.models import (
    ENSEMBLE,
    POSTPROCESSING,
    PREPROCESSING,
    TENSORRT_LLM,
    TENSORRT_LLM_BLS,
)

_TOKENIZER = "the build puts the tokenizer into each model"
_ADAPTERS = "a request's 'model' chooses, on /v1 and openai_bls"
_SPECIAL = "it is a field of requests to openai_bls"

_INSTEAD: dict[str, dict[str, str]] = {
    TENSORRT_LLM.name: {
        "triton_backend": "give --backend python or --backend cpp to the build",
        "engine_dir": "the engine is in the model's folder, and the build writes its path",
        "tokenizer_dir": _TOKENIZER,
    },
    TENSORRT_LLM_BLS.name: {
        "accumulate_tokens": "leave it out: streams are put together right without it",
        "bls_instance_count": "its name here is tensorrt_llm_bls.instances; one instance runs any number of requests",
        "tensorrt_llm_model_name": _ADAPTERS,
        "tensorrt_llm_draft_model_name": "a speculative_config names one, in the file of --extra-llm-api-options",
        "logits_datatype": "leave it out: there are no logits",
    },
    PREPROCESSING.name: {
        "preprocessing_instance_count": "one instance prepares preprocessing.tokenizer_threads prompts at a time",
        "tokenizer_dir": _TOKENIZER,
        "add_special_tokens": _SPECIAL,
    },
    POSTPROCESSING.name: {
        "postprocessing_instance_count": "its name here is postprocessing.instances",
        "tokenizer_dir": _TOKENIZER,
        "skip_special_tokens": _SPECIAL,
    },
    ENSEMBLE.name: {"decoupled_mode": "it answers as its engine does: set tensorrt_llm.decoupled_mode"},
}


def instead(model: str, name: str) -> str | None:
    """Advice on the setting that replaces the official `name` of a model; None where it is no such name."""
    if name == "triton_max_batch_size":
        return f"its name here is {model}.max_batch_size"
    return _INSTEAD.get(model, {}).get(name)
