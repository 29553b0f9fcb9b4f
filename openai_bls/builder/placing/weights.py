"""Weights of a checkpoint: checked, converted where need be, and put into the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from openai_bls.builder.checkpoint.files import (
    PYTORCH,
    SAFETENSORS,
    read_headers,
    weight_files,
)
from openai_bls.builder.checkpoint.kind import causal_lm, quantized
from openai_bls.builder.gguf.source import WEIGHTS_NAME, write_weights
from openai_bls.builder.placing.files import place
from openai_bls.core import fp8_checkpoint
from openai_bls.core.checkpoint import CheckpointFacts, Tensors, missing_weights
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.launcher import progress


def place_weights(
    source: Path, target: Path, facts: CheckpointFacts, report: Callable[[str], None], *, trust_remote_code: bool
) -> None:
    """Put the weights of a causal language model into `target` as safetensors.

    Raises:
        BuildError: no causal language model, or weights that are missing or do not load.
    """
    note = causal_lm(source, facts, trust_remote_code=trust_remote_code)
    if note is not None:
        report(note)
    if (source / WEIGHTS_NAME).is_file():
        write_weights(source, target, report)
        return
    whole = not quantized(source) and not trust_remote_code
    if trust_remote_code:
        _place_code(source, target)
    names, tensors = find_weights(source)
    if fp8_checkpoint.quantization(source) is not None:
        fp8_checkpoint.scale_names(tensors)
    if tensors:
        if whole:
            _require_whole(source, tensors)
        _place_files(source, target, names, report)
    else:
        report("weights: converting PyTorch files to safetensors")
        _convert(source, target, trust_remote_code=trust_remote_code)


def place_as_it_is(source: Path, target: Path, report: Callable[[str], None], *, trust_remote_code: bool) -> None:
    """Put the weights into `target` in the format that they have, for an engine that reads them itself.

    Raises:
        BuildError: there are none, or some are missing.
    """
    if trust_remote_code:
        _place_code(source, target)
    _place_files(source, target, find_weights(source)[0], report)


def _place_code(source: Path, target: Path) -> None:
    for path in source.glob("*.py"):
        place(path, target / path.name)


def _place_files(source: Path, target: Path, names: Sequence[str], report: Callable[[str], None]) -> None:
    with progress.bar("weights", sum((source / name).stat().st_size for name in names)) as bar:
        for number, name in enumerate(names, 1):
            report(f"weights {number}/{len(names)}: {name}")
            place(source / name, target / name, bar.advance)


def find_weights(source: Path) -> tuple[list[str], Tensors]:
    """Names of the files with the weights of the checkpoint in `source`, and their tensors; {} for PyTorch's own files.

    Raises:
        BuildError: there are none, or some are missing, cut off or damaged.
    """
    names = weight_files(source) or weight_files(source, PYTORCH)
    if not names:
        others = sorted(
            path.name for path in source.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth")
        )
        beside = f"; {', '.join(others[:3])} is none of these" if others else ""
        raise BuildError(f"{source} has no weights ({SAFETENSORS}, {PYTORCH}, or their parts with an index){beside}")
    return names, read_headers(source, names)


def _require_whole(source: Path, tensors: Tensors) -> None:
    from openai_bls.builder.checkpoint.tensor_check import tensor_problem

    try:
        problem = tensor_problem(source, tensors)
    except Exception as error:  # whatever a model's class makes of strange values
        problem = f"transformers makes no model of them: {first_line(error)}"
    if problem is not None:
        raise BuildError(f"the weights in {source} are not those of the model in its config.json: {problem}")


def _convert(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    import transformers

    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype="auto", trust_remote_code=trust_remote_code, local_files_only=True, output_loading_info=True
        )
        reason = missing_weights(info["missing_keys"])
        if reason is None:
            model.save_pretrained(target)
    except Exception as error:
        reason = first_line(error)
    if reason is not None:
        raise BuildError(f"the weights of {source} cannot be converted to safetensors: {reason}")
