"""Renders a model's `config.pbtxt` from its declaration in `tensors`.

The files in `model_repository/` are committed as rendered, with literal values and no placeholders;
`python -m openai_bls render` writes them again, and a test holds them against this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from openai_bls.tensors import MODELS, Model, Step, Tensor


def render(model: Model) -> str:
    """The text of `model`'s config.pbtxt."""
    lines = [
        f"# {model.comment}",
        "# Rendered from openai_bls/tensors.py by `python -m openai_bls render`.",
    ]
    lines += [f"name: {_quote(model.name)}"]
    lines += ['platform: "ensemble"'] if model.steps else ['backend: "python"']
    lines += [f"max_batch_size: {model.max_batch_size}"]
    if model.decoupled:
        lines += ["model_transaction_policy { decoupled: true }"]
    lines += _tensors("input", model.inputs) + _tensors("output", model.outputs)
    if model.steps:
        lines += ["ensemble_scheduling {", *_steps(model.steps), "}"]
    else:
        lines += [f"instance_group [ {{ count: {model.instances} kind: KIND_CPU }} ]"]
    for key, value in model.parameters.items():
        lines += [f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(value)} }} }}"]
    return "\n".join(lines) + "\n"


def with_parameters(model: Model, values: Mapping[str, str]) -> Model:
    """`model` with other parameter values.

    Raises:
        KeyError: a parameter that the model does not have; the message names those it has.
    """
    for key in values:
        if key not in model.parameters:
            known = ", ".join(sorted(model.parameters)) or "none"
            raise KeyError(f"{model.name} has no parameter {key!r}; it has {known}")
    return msgspec.structs.replace(model, parameters={**model.parameters, **values})


def write_repository(repository: Path, models: Iterable[Model] = MODELS.values()) -> list[Path]:
    """Write every model's config.pbtxt below `repository`; return the files that changed."""
    changed = []
    for model in models:
        path = repository / model.name / "config.pbtxt"
        text = render(model)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
        # Triton loads a model only if it has a version folder; an ensemble's is empty but for this file.
        (path.parent / "1").mkdir(exist_ok=True)
    return changed


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tensors(section: str, tensors: Iterable[Tensor]) -> list[str]:
    lines = [f"{section} ["]
    for tensor in tensors:
        dims = ", ".join(str(dim) for dim in tensor.dims)
        text = f"name: {_quote(tensor.name)} data_type: TYPE_{tensor.data_type} dims: [ {dims} ]"
        if tensor.scalar:
            text += " reshape: { shape: [ ] }"
        if tensor.optional:
            text += " optional: true"
        lines += [f"  {{ {text} }},"]
    lines[-1] = lines[-1].rstrip(",")
    return [*lines, "]"]


def _steps(steps: Iterable[Step]) -> list[str]:
    lines = ["  step ["]
    for step in steps:
        lines += ["    {", f"      model_name: {_quote(step.model)}", "      model_version: -1"]
        for section, tensors in (("input_map", step.inputs), ("output_map", step.outputs)):
            for inner, outer in tensors.items():
                lines += [f"      {section} {{ key: {_quote(inner)} value: {_quote(outer)} }}"]
        lines += ["    },"]
    lines[-1] = "    }"
    return [*lines, "  ]"]
