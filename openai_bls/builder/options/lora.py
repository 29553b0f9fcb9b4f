"""Options of a build about LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.manifest import BuildError, Positive
from openai_bls.engines.adapters import ADAPTER_NAME, CONFIG_FILE


class LoraOptions(msgspec.Struct, frozen=True):
    """Adapters to build in, and room for those that are loaded while the engine runs."""

    adapters: dict[str, Path] = {}
    """Name → its directory."""
    max_loras: Positive | None = None
    """Adapters of one step; None is as many as are built in."""
    max_lora_rank: Positive | None = None
    """Highest rank of an adapter; None is that of those built in."""


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
