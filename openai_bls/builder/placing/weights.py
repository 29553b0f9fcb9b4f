"""Weights of a checkpoint: checked, converted where need be, and put into the engine."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.checkpoint.files import PYTORCH, other_weight_files, weight_files
from openai_bls.builder.checkpoint.finite import not_finite
from openai_bls.builder.checkpoint.kind import causal_lm, quantized
from openai_bls.builder.checkpoint.quantized import plain_under, untold
from openai_bls.builder.checkpoint.tensor_names import (
    MERGE,
    listed,
    lora_tensors,
    problem_of_missing,
    surplus_layers,
)
from openai_bls.builder.placing.files import place
from openai_bls.core import fp8_checkpoint
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.launcher import progress


def place_weights(
    checkpoint: Checkpoint,
    target: Path,
    report: Callable[[str], None],
    *,
    trust_remote_code: bool,
    force: bool = False,
    images: bool = False,
) -> None:
    """Put the weights of a causal language model into `target` as safetensors.

    Args:
        checkpoint: the checkpoint.
        target: folder of the engine.
        report: called with one line per stage.
        trust_remote_code: whether the checkpoint's own code may run.
        force: take a checkpoint with whole layers or an adapter that the model does not use, or with weights that are
            quantized and not told of.
        images: whether the model takes images, with its vision tower.

    Raises:
        BuildError: no causal language model, or weights that are missing, do not load, or are not finite numbers.
    """
    source = checkpoint.folder
    note = None if images else causal_lm(checkpoint, trust_remote_code=trust_remote_code)
    if note is not None:
        report(note)
    whole = not quantized(checkpoint) and not trust_remote_code
    if trust_remote_code:
        _place_code(source, target)
    names, tensors = checkpoint.weights
    _report_strange(checkpoint, report, force=force or trust_remote_code)
    if fp8_checkpoint.quantization(checkpoint.config) is not None:
        fp8_checkpoint.scale_names(tensors)
    unused: Collection[str] = ()
    if tensors:
        if whole:
            unused = _require_whole(checkpoint, report, force=force, images=images)
        _place_files(source, target, names, report)
    else:
        report("weights: converting PyTorch files to safetensors")
        _convert(checkpoint, target, report, trust_remote_code=trust_remote_code, force=force, images=images)
    require_finite(source, target, unused)


def place_as_it_is(
    checkpoint: Checkpoint, target: Path, report: Callable[[str], None], *, trust_remote_code: bool, force: bool
) -> None:
    """Put the weights into `target` in the format that they have, for an engine that reads them itself.

    Args:
        checkpoint: the checkpoint.
        target: folder of the engine.
        report: called with one line per stage.
        trust_remote_code: whether the checkpoint's own code may run, and knows what its weights are.
        force: take weights that are quantized and not told of.

    Raises:
        BuildError: there are none, or some are missing, or quantized in a form that config.json does not tell of.
    """
    source = checkpoint.folder
    if trust_remote_code:
        _place_code(source, target)
    _report_strange(checkpoint, report, force=force or trust_remote_code)
    _place_files(source, target, checkpoint.weights.names, report)
    require_finite(source, target)


def require_finite(source: Path, target: Path, unused: Collection[str] = ()) -> None:
    """Check that no number of the weights in `target` is infinity or NaN; those in PyTorch's own files are not read.

    Args:
        source: checkpoint that they come from.
        target: folder with safetensors files.
        unused: names of tensors that do not matter.

    Raises:
        BuildError: some are.
    """
    paths = sorted(target.glob("*.safetensors"))
    with progress.bar("numbers", sum(path.stat().st_size for path in paths)) as bar:
        found = sorted({name for path in paths for name in not_finite(path, bar.advance)} - {*unused})
    if found:
        raise BuildError(
            f"the weights of {source} are damaged, with numbers that are not finite (NaN or infinity) in "
            f"{listed(found)}: download or export them again"
        )


def _place_code(source: Path, target: Path) -> None:
    for path in source.glob("*.py"):
        place(path, target / path.name)


def _place_files(source: Path, target: Path, names: Sequence[str], report: Callable[[str], None]) -> None:
    with progress.bar("weights", sum((source / name).stat().st_size for name in names)) as bar:
        for number, name in enumerate(names, 1):
            report(f"weights {number}/{len(names)}: {name}")
            place(source / name, target / name, bar.advance)


def _report_strange(checkpoint: Checkpoint, report: Callable[[str], None], *, force: bool) -> None:
    """Say what is well-formed and may be the rest of another checkpoint, or is quantized and not told of."""
    source, (names, tensors) = checkpoint.folder, checkpoint.weights
    if others := other_weight_files(source, names):
        report(f"weights: those of {names[-1]}; not read: {listed(others)}")
    if form := plain_under(checkpoint.config, tensors):
        report(f"weights: none of them is quantized, and the quantization_config of {source} says {form}")
    found = None if (source / "quantize_config.json").is_file() else untold(checkpoint.config, tensors)
    if found is None:
        return
    told = f"the weights in {source} are quantized ({' and '.join(found.types)}, {listed(found.names)})"
    served = "plain numbers, without scales"
    if found.scaled and not force:
        raise BuildError(
            f"{told}, and its config.json has no quantization_config: take the config.json that was written with them, "
            f"or build the original checkpoint (--force serves them as {served})"
        )
    report(f"{told}, and are served as {served}: its config.json has no quantization_config")


def _require_whole(checkpoint: Checkpoint, report: Callable[[str], None], *, force: bool, images: bool) -> list[str]:
    """Names of the tensors that the model does not use."""
    from openai_bls.builder.checkpoint.tensor_check import check_tensors

    source, tensors = checkpoint.folder, checkpoint.weights.tensors
    unused: list[str] = []
    try:
        problem, unused = check_tensors(source, tensors, images=images)
    except Exception as error:  # whatever a model's class makes of strange values
        problem = f"transformers makes no model of them: {first_line(error)}"
    if problem is not None:
        raise BuildError(f"the weights in {source} are not those of the model in its config.json: {problem}")
    _require_used(checkpoint, unused, tensors, report, force=force)
    return unused


def _require_used(
    checkpoint: Checkpoint,
    unused: Collection[str],
    names: Collection[str],
    report: Callable[[str], None],
    *,
    force: bool,
) -> None:
    """Check that the tensors that the model does not use are nothing that it would be another one without."""
    source = checkpoint.folder
    if layers := surplus_layers(unused, names, checkpoint.config):
        _refuse(
            f"the weights in {source} have layers that config.json does not: number {', '.join(map(str, layers))}, "
            "counted from 0",
            "",
            report,
            force=force,
        )
    if adapter := lora_tensors(unused):
        _refuse(
            f"the weights in {source} hold a LoRA adapter ({listed(adapter)}) that is not merged into the model",
            f": {MERGE}",
            report,
            force=force,
        )
    if unused:
        report(f"weights: the model does not use {listed(unused)}")


def _refuse(told: str, advice: str, report: Callable[[str], None], *, force: bool) -> None:
    if not force:
        raise BuildError(f"{told}{advice} (--force builds it without them)")
    report(f"in spite of --force: {told}")


def _convert(
    checkpoint: Checkpoint,
    target: Path,
    report: Callable[[str], None],
    *,
    trust_remote_code: bool,
    force: bool,
    images: bool,
) -> None:
    import transformers

    source = checkpoint.folder
    auto = transformers.AutoModelForImageTextToText if images else transformers.AutoModelForCausalLM
    try:
        model, info = auto.from_pretrained(
            source, dtype="auto", trust_remote_code=trust_remote_code, local_files_only=True, output_loading_info=True
        )
        reason = problem_of_missing(info["missing_keys"], info["unexpected_keys"])
        if reason is None:
            unused = sorted(info["unexpected_keys"])
            _require_used(checkpoint, unused, {*model.state_dict(), *unused}, report, force=force)
            model.save_pretrained(target)
    except BuildError:
        raise
    except pickle.UnpicklingError:
        from openai_bls.builder.checkpoint.tensor_check import pickle_problem

        # PyTorch's own message advises to let the file run its code.
        names = [name for name in weight_files(source, PYTORCH) if name.endswith(".bin")]
        reason = pickle_problem([source / name for name in names])
    except Exception as error:
        reason = first_line(error)
    if reason is not None:
        raise BuildError(f"the weights of {source} cannot be converted to safetensors: {reason}")
