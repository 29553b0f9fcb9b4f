"""Task models by their configuration: `openai_task`, its tensors and options, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from openai_bls.pipeline.task_models.registry import AUDIO_FORMATS, SAMPLE_FORMATS, TASKS, TaskModel, TensorSpec

PREFIX = "openai_"

_TEXT = ("TYPE_STRING",)
_INTEGERS = ("TYPE_INT32", "TYPE_INT64")
_FLOAT = ("TYPE_FP32",)
_SAMPLES = ("TYPE_INT16", "TYPE_FP32")

SAMPLE_RATES = range(8000, 48001)
"""Samples in a second that a model's audio may have."""
HEARD_RATE = 16_000
"""Samples in a second of the audio that models of speech hear, unless they say otherwise."""


class Role(NamedTuple):
    """Tensor that a task takes or gives; `openai_<input or output>_<role>` names it, by default the role does."""

    data_types: tuple[str, ...]
    one: bool = True
    """One element per input, not a vector."""
    optional: bool = False


class Signature(NamedTuple):
    """Tensors and options of a task."""

    inputs: Mapping[str, Role]
    outputs: Mapping[str, Role]
    options: tuple[str, ...] = ()
    decoupled: bool = False
    """A decoupled model is fine, too."""


_COUNT = Role(_INTEGERS, optional=True)
_VECTOR = Role(_FLOAT, one=False, optional=True)
_PAIR = Signature({"query": Role(_TEXT), "document": Role(_TEXT)}, {"score": Role(_FLOAT), "prompt_tokens": _COUNT})

SIGNATURES: dict[str, Signature] = {
    "chat": Signature({"request": Role(_TEXT)}, {"response": Role(_TEXT)}, decoupled=True),
    "classify": Signature(
        {"text": Role(_TEXT)},
        {"scores": Role(_FLOAT, one=False), "labels": Role(_TEXT, one=False, optional=True), "prompt_tokens": _COUNT},
        ("labels", "threshold"),
    ),
    "embeddings": Signature(
        {"text": Role(_TEXT, optional=True), "token_ids": Role(_INTEGERS, one=False, optional=True)},
        {"embedding": Role(_FLOAT, one=False), "prompt_tokens": _COUNT},
        ("dimensions",),
    ),
    "rerank": _PAIR,
    "score": _PAIR,
    "speech": Signature(
        {
            "text": Role(_TEXT),
            "voice": Role(_TEXT, optional=True),
            "instructions": Role(_TEXT, optional=True),
            "speed": Role(_FLOAT, optional=True),
            "format": Role(_TEXT, optional=True),
        },
        {"audio": Role((*_SAMPLES, *_TEXT), one=False), "prompt_tokens": _COUNT},
        ("sample_rate", "formats", "voices"),
        decoupled=True,
    ),
    "transcription": Signature(
        {
            "audio": Role(_FLOAT, one=False),
            "language": Role(_TEXT, optional=True),
            "prompt": Role(_TEXT, optional=True),
            "temperature": Role(_FLOAT, optional=True),
            "task": Role(_TEXT, optional=True),
        },
        {
            "text": Role(_TEXT),
            **dict.fromkeys(("segment_start", "segment_end"), _VECTOR),
            "segment_text": Role(_TEXT, one=False, optional=True),
            **dict.fromkeys(("segment_avg_logprob", "segment_no_speech_prob"), _VECTOR),
            **dict.fromkeys(("word_start", "word_end"), _VECTOR),
            "word": Role(_TEXT, one=False, optional=True),
            "language": Role(_TEXT, optional=True),
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
        },
        ("sample_rate", "language"),
        decoupled=True,
    ),
}
"""Task → what a model of it must have."""


class _FaultError(Exception):
    """Fault of a model's configuration, as the end of a sentence."""


def task_model(config: Mapping[str, Any], created: int) -> TaskModel | None:
    """The task model that a model's configuration declares; None if it declares none.

    Args:
        config: configuration that `GET /v2/models/<name>/config` returns.
        created: Unix time.
    """
    parameters = {key: str(value.get("string_value", "")) for key, value in config.get("parameters", {}).items()}
    task = parameters.get("openai_task")
    if task is None:
        return None
    model = TaskModel(
        name=config["name"],
        task=task,
        created=created,
        max_batch_size=int(config.get("max_batch_size", 0)),
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
    )
    try:
        return _checked(model, config, parameters)
    except _FaultError as fault:
        return replace(model, fault=str(fault))


def _checked(model: TaskModel, config: Mapping[str, Any], parameters: Mapping[str, str]) -> TaskModel:
    signature = SIGNATURES.get(model.task)
    if signature is None:
        raise _FaultError(f"openai_task is {model.task!r}, which is none of {', '.join(TASKS)}")
    if model.decoupled and not signature.decoupled:
        raise _FaultError(f"it is decoupled, and a model of the task {model.task} answers a request with one response")
    known = _known_parameters(signature)
    for key in parameters:
        if key.startswith(PREFIX) and key not in known:
            raise _FaultError(f"its parameter {key!r} is none of {', '.join(known)}")
    inputs = _tensors(signature.inputs, config.get("input", []), "input", parameters)
    outputs = _tensors(signature.outputs, config.get("output", []), "output", parameters)
    checked = replace(model, inputs=inputs, outputs=outputs, timeout_s=_number(parameters, "openai_timeout_s", 0.0))
    if model.task == "embeddings":
        checked = _embeddings(checked, parameters)
    elif model.task == "classify":
        checked = _classify(checked, parameters)
    elif model.task == "speech":
        checked = _speech(checked, parameters)
    elif model.task == "transcription":
        checked = _transcription(checked, parameters)
    used = {tensor.name for tensor in inputs.values()}
    for entry in config.get("input", []):
        if entry["name"] not in used and not entry.get("optional", False):
            raise _FaultError(f"its input {entry['name']!r} is required, and the task {model.task} has nothing for it")
    return checked


def _known_parameters(signature: Signature) -> list[str]:
    options = [PREFIX + option for option in ("task", "timeout_s", *signature.options)]
    tensors = [f"{PREFIX}input_{role}" for role in signature.inputs]
    return [*options, *tensors, *(f"{PREFIX}output_{role}" for role in signature.outputs)]


def _tensors(
    roles: Mapping[str, Role], declared: Sequence[Mapping[str, Any]], section: str, parameters: Mapping[str, str]
) -> dict[str, TensorSpec]:
    """The tensors that the model has for `roles`."""
    entries = {entry["name"]: entry for entry in declared}
    found = {}
    for name, role in roles.items():
        parameter = f"{PREFIX}{section}_{name}"
        tensor = parameters.get(parameter, name)
        entry = entries.get(tensor)
        if entry is None:
            # One that is named on purpose must be there.
            if role.optional and parameter not in parameters:
                continue
            there = ", ".join(entries) or "none"
            raise _FaultError(f"it has no {section} {tensor!r} (there: {there}; {parameter} names another)")
        found[name] = _tensor(entry, role, section)
    return found


def _tensor(entry: Mapping[str, Any], role: Role, section: str) -> TensorSpec:
    # gRPC's JSON has 64-bit numbers as strings.
    dims = tuple(int(size) for size in entry.get("dims", []))
    spec = TensorSpec(entry["name"], str(entry.get("data_type", "")), dims, bool(entry.get("optional", False)))
    if spec.data_type not in role.data_types:
        raise _FaultError(f"its {section} {spec.name!r} is {spec.data_type}, not {' or '.join(role.data_types)}")
    if role.one and any(size not in (1, -1) for size in dims):
        raise _FaultError(f"its {section} {spec.name!r} has dims {list(dims)}, not [ 1 ]")
    if not role.one and section == "input" and dims[-1:] != (-1,):
        raise _FaultError(f"its {section} {spec.name!r} has dims {list(dims)}, not [ -1 ]")
    return spec


def _embeddings(model: TaskModel, parameters: Mapping[str, str]) -> TaskModel:
    if not model.inputs:
        raise _FaultError("it has neither an input 'text' (TYPE_STRING) nor an input 'token_ids' (TYPE_INT32 or INT64)")
    if len(model.inputs) == 2 and not all(tensor.optional for tensor in model.inputs.values()):
        raise _FaultError("a request has texts or token ids, so its inputs for both must be optional")
    dimensions = parameters.get("openai_dimensions", "fixed")
    if dimensions not in ("fixed", "matryoshka"):
        raise _FaultError(f"openai_dimensions is {dimensions!r}, which is neither fixed nor matryoshka")
    return replace(model, matryoshka=dimensions == "matryoshka")


def _classify(model: TaskModel, parameters: Mapping[str, str]) -> TaskModel:
    labels = _names(parameters, "openai_labels")
    if bool(labels) == ("labels" in model.outputs):
        raise _FaultError("the names of its classes come either from openai_labels or from an output 'labels'")
    size = model.outputs["scores"].dims[-1:]
    if labels and size not in ((-1,), (len(labels),)):
        name = model.outputs["scores"].name
        raise _FaultError(f"openai_labels has {len(labels)} names, and its output {name!r} {size[-1]} scores")
    threshold = _number(parameters, "openai_threshold", -math.inf)
    return replace(model, labels=labels, threshold=0.5 if threshold is None else threshold)


def _speech(model: TaskModel, parameters: Mapping[str, str]) -> TaskModel:
    """Samples are answered as wav and pcm; what is encoded as the model says."""
    rate = _sample_rate(parameters)
    formats, voices = _names(parameters, "openai_formats"), _names(parameters, "openai_voices")
    if model.outputs["audio"].data_type in _SAMPLES:
        if rate is None:
            raise _FaultError("its audio is samples, and openai_sample_rate does not say how many are a second")
        if formats or "format" in model.inputs:
            raise _FaultError("its audio is samples, which are answered as wav and pcm: openai_formats is for others")
        formats = SAMPLE_FORMATS
    elif not formats:
        raise _FaultError(f"openai_formats does not say which of {', '.join(AUDIO_FORMATS)} its audio is encoded in")
    elif unknown := [name for name in formats if name not in AUDIO_FORMATS]:
        raise _FaultError(f"openai_formats has {unknown[0]!r}, which is none of {', '.join(AUDIO_FORMATS)}")
    elif len(formats) > 1 and "format" not in model.inputs:
        raise _FaultError("openai_formats has several, and no input 'format' tells it which is wanted")
    if voices and "voice" not in model.inputs:
        raise _FaultError("openai_voices has names, and no input 'voice' tells it which is wanted")
    return replace(model, sample_rate=rate, formats=formats, voices=voices)


_TOGETHER = (("segment_start", "segment_end", "segment_text"), ("word_start", "word_end", "word"))
"""Outputs of which a model has all or none."""
_OF_SEGMENTS = ("segment_avg_logprob", "segment_no_speech_prob")


def _transcription(model: TaskModel, parameters: Mapping[str, str]) -> TaskModel:
    for names in _TOGETHER:
        there = [name for name in names if name in model.outputs]
        if there and len(there) < len(names):
            raise _FaultError(f"it has the output {there[0]!r}, and not all of {', '.join(names)}")
    for name in _OF_SEGMENTS:
        if name in model.outputs and "segment_text" not in model.outputs:
            raise _FaultError(f"it has the output {name!r}, and no segments")
    if ("prompt_tokens" in model.outputs) != ("completion_tokens" in model.outputs):
        raise _FaultError("it has one of the outputs prompt_tokens and completion_tokens, and not the other")
    language = parameters.get("openai_language", "").strip()
    if language and "language" in model.inputs:
        raise _FaultError("openai_language is its only language, and it has an input 'language'")
    return replace(model, sample_rate=_sample_rate(parameters) or HEARD_RATE, language=language)


def _sample_rate(parameters: Mapping[str, str]) -> int | None:
    """The parameter `openai_sample_rate`; None if it is not there."""
    rate = _number(parameters, "openai_sample_rate", 0.0)
    if rate is None:
        return None
    if rate not in SAMPLE_RATES:
        raise _FaultError(f"openai_sample_rate is {rate:g}, not a whole number from 8000 to 48000")
    return int(rate)


def _names(parameters: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Names that the parameter has, with commas between."""
    names = tuple(name.strip() for name in parameters.get(key, "").split(",") if name.strip())
    if len(set(names)) < len(names):
        raise _FaultError(f"{key} has a name twice")
    return names


def _number(parameters: Mapping[str, str], key: str, above: float) -> float | None:
    """The parameter as a number; None if it is not there."""
    if key not in parameters:
        return None
    try:
        value = float(parameters[key])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= above:
        least = "" if above == -math.inf else f" above {above:g}"
        raise _FaultError(f"{key} is {parameters[key]!r}, not a number{least}")
    return value
