"""Writer of `config.pbtxt`, from a model's declaration in `tensors`.

The files in `model_repository/` are committed as rendered, with literal values and no placeholders;
`python -m openai_bls render` (`configure`) writes them again, and a test holds them against this module.
"""

from __future__ import annotations

from collections.abc import Iterable

from openai_bls.triton_models.tensors.declaration import Model, Queue, Step, Tensor


def render(model: Model) -> str:
    """The text of `model`'s config.pbtxt."""
    lines = [
        f"# {model.comment}",
        "# Rendered from openai_bls/triton_models/tensors/models.py by `python -m openai_bls render`.",
    ]
    lines += [f"name: {_quote(model.name)}"]
    lines += ['platform: "ensemble"'] if model.steps else [f"backend: {_quote(model.backend)}"]
    lines += [f"max_batch_size: {model.max_batch_size}"]
    if model.decoupled is not None:
        lines += [f"model_transaction_policy {{ decoupled: {str(model.decoupled).lower()} }}"]
    if model.queue is not None:
        lines += ["dynamic_batching {", *_queue(model.queue), "}"]
    lines += _tensors("input", model.inputs) + _tensors("output", model.outputs)
    if model.steps:
        lines += ["ensemble_scheduling {", *_steps(model.steps), "}"]
    else:
        lines += [f"instance_group [ {{ count: {model.instances} kind: KIND_CPU }} ]"]
    for key, value in model.parameters.items():
        lines += [f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(value)} }} }}"]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _queue(queue: Queue) -> list[str]:
    lines = [f"  max_queue_delay_microseconds: {queue.max_queue_delay_microseconds}"]
    if queue.max_queue_size:
        lines += [f"  default_queue_policy {{ max_queue_size: {queue.max_queue_size} }}"]
    return lines


def _tensors(section: str, tensors: Iterable[Tensor]) -> list[str]:
    lines = [f"{section} ["]
    for tensor in tensors:
        dims = ", ".join(str(dim) for dim in tensor.dims)
        text = f"name: {_quote(tensor.name)} data_type: TYPE_{tensor.data_type} dims: [ {dims} ]"
        if tensor.scalar:
            text += " reshape: { shape: [ ] }"
        if tensor.optional:
            text += " optional: true"
        if tensor.ragged:
            text += " allow_ragged_batch: true"
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
