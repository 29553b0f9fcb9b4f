"""Check of a checkpoint's tensors: transformers' own loading on the meta device, where they have names and no content.

Its conversions (experts that it joins, names of older releases, tied weights) apply as they do at the load, so what is
missing here would be random numbers there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from openai_bls.builder.checkpoint.tensor_names import problem_of_missing

# Names of safetensors' types that are not those of PyTorch in small letters.
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class TensorCheck(NamedTuple):
    """Tensors of a checkpoint held against the model of its config.json."""

    problem: str | None
    """A tensor that is missing or has another shape; None if the model is whole."""
    unused: list[str]
    """Names of tensors that the model has no place for, as the files have them, sorted; without those that its class
    leaves out on purpose."""


class _Header(torch.Tensor):  # type: ignore[misc]
    """A tensor without content, that knows whether a model has taken it."""

    is_taken = False

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Content for a parameter, as transformers asks for it."""
        self.is_taken = True
        return self.as_subclass(torch.Tensor)[index]


def check_tensors(
    folder: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], *, images: bool = False
) -> TensorCheck:
    """Hold the tensors of a checkpoint, as its file headers tell them, against the model of its config.json.

    Args:
        folder: folder with the checkpoint's config.json, whose model_type transformers knows. Its own code is not run.
        tensors: name → type in safetensors' words, and shape.
        images: hold them against the model with its vision tower.

    Raises:
        Exception: whatever transformers raises for a config or weights that it makes no model of.
    """
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    auto = transformers.AutoModelForImageTextToText if images else transformers.AutoModelForCausalLM
    made: Any = auto._model_mapping[type(config)]
    if made.config_class is config.sub_configs.get("text_config"):
        config = config.get_text_config()
    state = {
        name: torch.empty(shape, dtype=_DTYPES.get(dtype, torch.uint8), device="meta").as_subclass(_Header)
        for name, (dtype, shape) in tensors.items()
    }
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        _, info = _without_storage(made, state).from_pretrained(
            None,
            config=config,
            state_dict=state,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    finally:
        transformers.utils.logging.set_verbosity(level)
    problem = problem_of_missing(info["missing_keys"], state) or _mismatch(info["mismatched_keys"])
    return TensorCheck(problem, sorted(info["unexpected_keys"]))


def pickle_problem(paths: Sequence[Path]) -> str:
    """Reason why PyTorch does not unpickle one of its files at `paths` as tensors alone; they run no code."""
    for path in paths:
        try:
            unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        except Exception:  # of a file that is none of PyTorch's, or one of its oldest
            return (
                f"{path.name} is damaged, or has more than tensors, so it is not opened: get the weights as safetensors"
            )
        if unsafe:
            return (
                f"{path.name} has code to run ({', '.join(sorted(unsafe)[:3])}) and not only tensors, so it is not "
                "opened: get the weights as safetensors"
            )
    return f"{', '.join(path.name for path in paths)} cannot be unpickled: get the weights as safetensors"


def _mismatch(keys: Collection[tuple[str, Any, Any]]) -> str | None:
    if not keys:
        return None
    name, held, needed = min(keys)
    more = f", and {len(keys) - 1} more do not fit" if len(keys) > 1 else ""
    return f"{name} has the shape {list(held)}, and config.json makes it {list(needed)}{more}"


def _without_storage(made: Any, state: Mapping[str, _Header]) -> Any:
    """The class `made`, loading onto the meta device, where what is missing is not drawn at random either.

    What it does not take of `state` it names as the files do: transformers gives the names that the model would have.

    The public way, `device_map="meta"`, wants the package accelerate, which nothing here uses.
    """

    def load(model: Any, state_dict: Any, files: Any, load_config: Any, **kwargs: Any) -> Any:
        on_meta = dataclasses.replace(load_config, device_map={"": torch.device("meta")})
        return made._load_pretrained_model(model, state_dict, files, on_meta, **kwargs)

    def nothing(*args: Any, **kwargs: Any) -> None:
        return

    def adjust(model: Any, info: Any) -> None:
        made._adjust_missing_and_unexpected_keys(model, info)
        if info.unexpected_keys:
            info.unexpected_keys = {name for name, header in state.items() if not header.is_taken}
            made._adjust_missing_and_unexpected_keys(model, info)

    overrides = dict.fromkeys(("_move_missing_keys_from_meta_to_device", "_initialize_missing_keys"), nothing)
    own = {"__module__": made.__module__, "_load_pretrained_model": staticmethod(load)}
    own["_adjust_missing_and_unexpected_keys"] = adjust
    return type(made.__name__, (made,), {**overrides, **own})
