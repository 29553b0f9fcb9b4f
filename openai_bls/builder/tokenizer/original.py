"""Tokenizer of a checkpoint as its own `AutoTokenizer` is, saved so that it no longer depends on config.json.

`AutoTokenizer` chooses the class by config.json, tokenizer_config.json and tokenizer.json together, and a class may
build another tokenizer than the file describes. What was built is saved whole, and the saved folder names the class
that takes its tokenizer.json as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.checkpoint.files import TOKENIZER_SOURCES
from openai_bls.core.checkpoint import read_json
from openai_bls.core.manifest import BuildError, first_line

PLAIN_CLASS = "TokenizersBackend"
"""transformers' class that takes a tokenizer.json as it is."""


def load_original(source: Path, *, trust_remote_code: bool) -> Any:
    """The tokenizer that `AutoTokenizer` makes of the checkpoint in `source`; nothing is asked on a terminal.

    Raises:
        BuildError: there is none, it is Python code that may not run, or it does not load.
    """
    has_file = (source / "tokenizer.json").is_file()
    if not has_file and not any(path for pattern in TOKENIZER_SOURCES for path in source.glob(pattern)):
        raise BuildError(f"{source} has no tokenizer.json and none can be made from the files it has")
    if _has_code(source) and not has_file and not trust_remote_code:
        # transformers would fill a class of its own with these files, for other token ids.
        raise BuildError(
            f"{source} has no tokenizer.json but a tokenizer of its own in Python: pass --trust-remote-code if "
            "you trust it and one may be made from that, or put a tokenizer.json beside the checkpoint"
        )
    import transformers

    try:
        # Without mistral_format the class would depend on whether the package mistral-common is installed.
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, trust_remote_code=trust_remote_code, local_files_only=True, mistral_format=False
        )
        legacy = source / "chat_template.json"
        if not tokenizer.chat_template and legacy.is_file():  # where processors of earlier releases have it
            tokenizer.chat_template = read_json(legacy).get("chat_template")
        tokenizer("")
    except Exception as error:  # what a folder without fitting files raises differs from class to class
        raise BuildError(_refusal(source, error, trust_remote_code=trust_remote_code)) from None
    return tokenizer


def save(tokenizer: Any, folder: Path) -> bool:
    """Save a tokenizer of transformers in `folder`, to be loaded as it is now; False if it has no tokenizer.json."""
    tokenizer.save_pretrained(folder)
    for code in folder.glob("*.py"):
        code.unlink()
    path = folder / "tokenizer_config.json"
    config = read_json(path)
    config.pop("auto_map", None)
    write_json(path, {**config, "tokenizer_class": PLAIN_CLASS})
    return (folder / "tokenizer.json").is_file()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file as the publishers of checkpoints have it, in indented lines."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))


def _has_code(source: Path) -> bool:
    path = source / "tokenizer_config.json"
    found = read_json(path).get("auto_map") if path.is_file() else None
    # The list is the form of earlier releases.
    return bool(found.get("AutoTokenizer") if isinstance(found, dict) else found)


def _refusal(source: Path, error: Exception, *, trust_remote_code: bool) -> str:
    if _has_code(source) and not trust_remote_code:
        return (
            f"{source} has a tokenizer of its own in Python: pass --trust-remote-code if you trust it, or take "
            "auto_map out of tokenizer_config.json if its tokenizer.json makes the same token ids "
            f"({first_line(error)})"
        )
    return f"the tokenizer of {source} cannot be loaded: {type(error).__name__}: {first_line(error)}"
