"""Adapters of a build: what the manifest says of them, and their files in the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openai_bls.builder.options.lora import LoraOptions
from openai_bls.builder.placing.files import place
from openai_bls.core.engine import LoraError
from openai_bls.core.manifest import BuildError, LoraSettings
from openai_bls.engines.adapters import DEFAULT_MAX_RANK, Adapter, read_adapter

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model")


def read_adapters(options: LoraOptions) -> dict[str, Adapter]:
    """The adapters by name.

    Raises:
        BuildError: one is of a kind that no engine here applies, or above `max_lora_rank`.
    """
    found: dict[str, Adapter] = {}
    for name, folder in options.adapters.items():
        try:
            found[name] = read_adapter(folder)
        except LoraError as error:
            raise BuildError(f"--lora-dir {name}: {error}") from None
        most = options.max_lora_rank
        if most is not None and found[name].rank > most:
            raise BuildError(f"--max-lora-rank {most} is below the rank {found[name].rank} of the adapter {name}")
    if options.max_loras is not None and options.max_loras < len(found):
        raise BuildError(f"--max-loras {options.max_loras} is below the {len(found)} adapters of --lora-dir")
    return found


def report_other_bases(options: LoraOptions, names: Sequence[str], report: Callable[[str], None]) -> None:
    """Say which adapters were made for another model by what they call it; their shapes may fit all the same.

    Args:
        options: options with the adapters.
        names: names, hub ids and paths of the model.
        report: called with a line for each of them.
    """
    for name, adapter in read_adapters(options).items():
        if base := adapter.other_base(names):
            report(f"the adapter {name} is of the base model {base}, by its base_model_name_or_path: is that this one?")


def lora_settings(
    options: LoraOptions, adapters: Mapping[str, Adapter], target_modules: Sequence[str] = ()
) -> LoraSettings:
    """Entry of the manifest for `adapters`, which are those of `options`."""
    room = options.max_loras or len(adapters)
    highest = max((adapter.rank for adapter in adapters.values()), default=DEFAULT_MAX_RANK)
    return LoraSettings(
        adapters={name: f"lora/{name}" for name in adapters},
        max_loras=room,
        max_lora_rank=(options.max_lora_rank or highest) if room else 0,
        target_modules=tuple(target_modules),
    )


def place_adapters(options: LoraOptions, target: Path) -> None:
    """Put the adapters' files into `target`, a folder each."""
    for name, folder in options.adapters.items():
        (target / name).mkdir()
        for path in _files(folder):
            place(path, target / name / path.name)


def fingerprint(options: LoraOptions) -> list[tuple[str, str, int, int]]:
    """Changes when a file of an adapter does."""
    return [
        (name, path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for name, folder in options.adapters.items()
        for path in _files(folder)
    ]


def _files(folder: Path) -> list[Path]:
    return sorted({path for pattern in _FILES for path in folder.glob(pattern)})
