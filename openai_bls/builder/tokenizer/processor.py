"""Processor of a vision-language checkpoint, put next to the tokenizer that it is loaded with."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openai_bls.builder.placing.files import place
from openai_bls.core.checkpoint import read_json
from openai_bls.engines.images.processor import PROCESSOR_FILES, class_name, has_processor

_FIELD = "processor_class"


def complete_processor(tokenizer: Path, checkpoint: Path) -> None:
    """Put the tokenizer's files next to the processor's in the prepared `checkpoint`, if it has one: engines of others
    load the processor, and the tokenizer in it, from the model's own folder."""
    if has_processor(checkpoint):
        for path in tokenizer.iterdir():
            if path.is_file() and not (checkpoint / path.name).exists():
                place(path, checkpoint / path.name)


def place_processor(source: Path, target: Path) -> None:
    """Put the processor's files into `target`, which has the tokenizer's; of a model without a processor nothing.

    A checkpoint may leave its class to the type of the model, which the tokenizer's folder does not say.
    """
    if not has_processor(source):
        return
    for name in PROCESSOR_FILES:
        if (source / name).is_file() and not (target / name).exists():
            place(source / name, target / name)
    named = [target / name for name in (*PROCESSOR_FILES, "tokenizer_config.json") if (target / name).is_file()]
    if any(read_json(path).get(_FIELD) for path in named):
        return
    if found := class_name(str(read_json(source / "config.json").get("model_type"))):
        path = target / PROCESSOR_FILES[0]
        fields = read_json(path) if path.is_file() else {}
        path.unlink(missing_ok=True)  # it may be a link to the checkpoint's
        path.write_bytes(msgspec.json.format(msgspec.json.encode({**fields, _FIELD: found}), indent=2))
