"""Kinds of checkpoints: causal language models, which the embedded engine serves, and others, refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.checkpoint.config import MODELOPT_FILE
from openai_bls.builder.checkpoint.quantized import CHECKPOINT_FORMS, stored_as
from openai_bls.core import fp8_checkpoint
from openai_bls.core.checkpoint import CheckpointFacts, read_json, text_config
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.engines.adapters import CONFIG_FILE as ADAPTER_CONFIG

_CLASSIFIER, _ENCODER = "a classifier or reward model", "an encoder"
_HEADLESS = "a model without an output projection, such as embedding models are"
# By the name of the architecture, the most telling first.
_KINDS = (
    (re.compile(r"ForSequenceClassification|ForTokenClassification|Reward|ForScor|Classif"), _CLASSIFIER),
    (re.compile(r"ForMaskedLM|ForQuestionAnswering|ForMultipleChoice|ForPreTraining|NextSentence"), _ENCODER),
    (re.compile(r"CTC$|Speech|Audio|Whisper|Asr"), "a speech model"),
)


def require_no_adapter(source: Path) -> None:
    """Raise `BuildError` if `source` holds an adapter and no model."""
    if not (source / ADAPTER_CONFIG).is_file() or any(source.glob("model*.safetensors*")):
        return
    base = str(read_json(source / ADAPTER_CONFIG).get("base_model_name_or_path") or "a model that it does not name")
    raise BuildError(
        f"{source} is an adapter (PEFT) of {base} without that model's weights: merge the two (peft's "
        f"merge_and_unload, then save_pretrained) and build the result, or serve it beside its base model with "
        f"--model {base} --lora-dir {source}"
    )


def causal_lm(checkpoint: Checkpoint, *, trust_remote_code: bool) -> str | None:
    """Note on a causal language model of which only the text part is served; None for any other one.

    Raises:
        BuildError: it is another kind of model, or one that transformers has no class for.
    """
    from transformers.models.auto import modeling_auto

    source, config = checkpoint.folder, checkpoint.config
    if "AutoModelForCausalLM" in (config.get("auto_map") or {}):
        if not trust_remote_code:
            raise BuildError(f"{source} comes with Python code of its own: pass --trust-remote-code if you trust it")
        return None
    model_type, architecture = checkpoint.facts.model_type, checkpoint.facts.architecture
    with_images = _with_images()
    causal = _names(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type))
    multimodal = architecture in _names(with_images.get(model_type))
    if causal and multimodal:
        return f"a vision-language model ({architecture}): its text part is served, images are refused"
    if causal and (not architecture or architecture in causal or "CausalLM" in architecture):
        return None
    if kind := next((words for pattern, words in _KINDS if pattern.search(architecture)), None):
        pass
    elif model_type in with_images:
        kind = "a vision-language model, whose text part transformers has no causal class for"
    elif model_type in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES or config.get("is_encoder_decoder"):
        kind = "an encoder-decoder model"
    elif causal and architecture.endswith("Model"):
        kind = _HEADLESS
    elif model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        kind = _ENCODER
    else:
        kind = "a model that this transformers has no causal language model for"
    raise BuildError(
        f"{source} is {kind} (model_type {model_type!r}, architecture {architecture!r}): only causal language models "
        f"are served{_with_a_task(kind, architecture)}"
    )


def _with_a_task(kind: str, architecture: str) -> str:
    """What to type for a model that pools; empty for others."""
    tasks = "--task classify, score or reward" if kind == _CLASSIFIER else "--task embed"
    pools = kind == _CLASSIFIER or (architecture.endswith("Model") and kind in (_ENCODER, _HEADLESS))
    return f"; `openai-bls build --engine vllm` with {tasks} takes such models" if pools else ""


def takes_images(facts: CheckpointFacts) -> bool:
    """True if transformers has a class for images and text for the architecture of a checkpoint."""
    return facts.architecture in _names(_with_images().get(facts.model_type))


def _with_images() -> dict[str, Any]:
    """Types of models that take images, with the names of their classes."""
    from transformers.models.auto import modeling_auto

    return {
        **getattr(modeling_auto, "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", {}),
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }


def _names(known: Any) -> tuple[str, ...]:
    return (known,) if isinstance(known, str) else tuple(known or ())


def quantized(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is quantized, in a form that transformers and its packages here can load.

    Raises:
        BuildError: it is quantized, and they cannot.
    """
    source, text = checkpoint.folder, text_config(checkpoint.config)
    told = text.get("quantization_config") or text.get("compression_config")
    if not told and (source / "quantize_config.json").is_file():
        told = {"quant_method": "gptq", "file": "quantize_config.json"}
    if not isinstance(told, dict):
        return False
    if fp8_checkpoint.is_served(told):
        return True
    stored = stored_as({"quantization_config": told})
    assert stored is not None
    form = CHECKPOINT_FORMS.get(stored.form)
    reason = _quantizer_problem(told)
    if reason is None:
        return True
    if form is not None and (form.tensorrt or form.pytorch_since is not None):
        since = "" if form.tensorrt or form.pytorch_since is None else " {}.{} or later".format(*form.pytorch_since)
        instead = f"--engine tensorrt_llm takes it (TensorRT-LLM{since}), or build the original checkpoint"
    else:
        instead = "build the original checkpoint instead"
    title = form.title if form is not None else stored.form
    raise BuildError(f"{source} is quantized ({title}), which cannot be loaded here: {reason}; {instead}")


def _quantizer_problem(told: dict[str, Any]) -> str | None:
    """Reason why transformers loads no weights that are quantized so: often a package that is not installed."""
    if "file" in told or "told_by" in told or told.get("quant_method") == "modelopt":
        return f"transformers does not read {told.get('file') or told.get('told_by') or MODELOPT_FILE}"
    from transformers.quantizers import auto

    try:
        # A copy: transformers takes fields out of what it is given.
        quantizer = auto.AutoHfQuantizer.from_config(msgspec.json.decode(msgspec.json.encode(told)), pre_quantized=True)
        quantizer.validate_environment(device_map=None)
    except ModuleNotFoundError as error:
        return f"it needs the package {error.name} (`pip install {error.name}`)"
    except Exception as error:  # each quantizer raises its own for what it misses
        return first_line(error).rstrip(".")
    return None
