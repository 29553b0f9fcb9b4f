"""Adapters of a build: options, what the manifest says of them, and their files in the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.weights import place
from openai_bls.core.engine import LoraError
from openai_bls.core.manifest import BuildError, LoraSettings, Positive
from openai_bls.engines.adapters import ADAPTER_NAME, CONFIG_FILE, DEFAULT_MAX_RANK, Adapter, read_adapter

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model")


class LoraOptions(msgspec.Struct, frozen=True):
    """Adapters to build in, and room for those that are loaded while the engine runs."""

    adapters: dict[str, Path] = {}
    """Name → its directory."""
    max_loras: Positive | None = None
    """None is as many as are built in."""
    max_lora_rank: Positive | None = None
    """None is their highest."""


def read_lora_options(values: Mapping[str, Any]) -> LoraOptions:
    """Options from the command line's values by their names there, of which those not given are absent.

    Raises:
        BuildError: a bad value.
    """
    sizes = {name: values[name] for name in ("max_loras", "max_lora_rank") if name in values}
    for name, value in sizes.items():
        if value < 1:
            raise BuildError(f"--{name.replace('_', '-')} {value}: at least 1 is needed")
    options = LoraOptions(_adapters(values.get("lora_dir", ())), **sizes)
    if options.max_lora_rank and not options.adapters and not options.max_loras:
        raise BuildError(
            "--max-lora-rank is for adapters: name their directories with --lora-dir, or make room for some that are "
            "loaded later with --max-loras"
        )
    return options


def _adapters(texts: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        path = Path(folder if equals else text).expanduser()
        name = name if equals else path.absolute().name
        if not ADAPTER_NAME.fullmatch(name) or name in (".", ".."):
            raise BuildError(f"--lora-dir: {name!r} cannot name an adapter; give NAME=DIR with letters, digits, - . _")
        if name in found:
            raise BuildError(f"--lora-dir: two adapters are called {name}; give NAME=DIR")
        if not (path / CONFIG_FILE).is_file():
            raise BuildError(f"--lora-dir {path} is no adapter: it has no {CONFIG_FILE}")
        found[name] = path
    return found


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
