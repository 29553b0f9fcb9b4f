"""Tokenizers of transformers, saved so that they no longer depend on config.json.

`AutoTokenizer` chooses the class by config.json, tokenizer_config.json and tokenizer.json together, and a class may
build another tokenizer than the file describes. What was built is saved whole, and the saved folder names the class
that takes its tokenizer.json as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.checkpoint import read_json

PLAIN_CLASS = "TokenizersBackend"
"""transformers' class that takes a tokenizer.json as it is."""


def save(tokenizer: Any, folder: Path) -> bool:
    """Save a tokenizer of transformers in `folder`, to be loaded as it is now; False if it has no tokenizer.json."""
    tokenizer.save_pretrained(folder)
    for code in folder.glob("*.py"):
        code.unlink()
    path = folder / "tokenizer_config.json"
    config = read_json(path)
    config.pop("auto_map", None)
    # What the class of the checkpoint gives beside token ids: token types, for models that tell pairs of texts by them.
    names = list(tokenizer.model_input_names)
    write_json(path, {**config, "tokenizer_class": PLAIN_CLASS, "model_input_names": names})
    return (folder / "tokenizer.json").is_file()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file as the publishers of checkpoints have it, in indented lines."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
