"""Tokenizer of a checkpoint as its own `AutoTokenizer` makes it, or a sentence on why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai_bls.builder.checkpoint.files import TOKENIZER_SOURCES
from openai_bls.core.checkpoint import read_json
from openai_bls.core.manifest import BuildError, first_line


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
