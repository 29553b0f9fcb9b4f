"""Files of sentence-transformers beside a checkpoint, by which vLLM pools: how, to which size, of how many tokens."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openai_bls.builder.placing.files import place
from openai_bls.core.manifest import BuildError, first_line

_LIST = "modules.json"
_PATTERNS = (_LIST, "config_sentence_transformers.json", "sentence_*_config.json")


class _Module(msgspec.Struct, frozen=True):
    path: str = ""


def place_modules(source: Path, target: Path) -> None:
    """Put the files into `target`, with the folders that modules.json names.

    Raises:
        BuildError: modules.json cannot be read, or names a folder elsewhere.
    """
    for path in sorted(found for pattern in _PATTERNS for found in source.glob(pattern)):
        place(path, target / path.name)
    for name in _folders(source / _LIST):
        if not (source / name).is_dir():
            continue
        (target / name).mkdir(exist_ok=True)
        for path in sorted((source / name).iterdir()):
            if path.is_file():
                place(path, target / name / path.name)


def _folders(path: Path) -> list[str]:
    """Names of the folders of modules; the first module, which is the model, often has none."""
    if not path.is_file():
        return []
    try:
        names = [module.path for module in msgspec.json.decode(path.read_bytes(), type=list[_Module])]
    except msgspec.DecodeError as error:
        raise BuildError(f"{path} cannot be read: {first_line(error)}") from None
    for name in names:
        if name and (name != Path(name).name or name == ".."):
            raise BuildError(f"{path} names {name!r}, which is no folder beside it")
    return [name for name in names if name]
