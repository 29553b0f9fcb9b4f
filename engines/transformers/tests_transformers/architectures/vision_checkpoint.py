"""Maker of tiny random vision-language checkpoints, with a processor and a tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from tests.processors import write_processor
from tests_transformers.architectures.checkpoint import MAX_LENGTH, spread, tiny_config
from tests_transformers.architectures.vision_table import VisionCase


def make_vision_checkpoint(folder: Path, name: str, case: VisionCase, *, max_length: int = 4 * MAX_LENGTH) -> None:
    """A tiny random model of `case` with its processor, as a hub has it."""
    tokenizer = write_processor(folder, case.processor)
    ids = tokenizer.convert_tokens_to_ids
    vocab_size = len(tokenizer) + (1200 if name == "paligemma" else 0)
    text_sizes = {"vocab_size": vocab_size, "max_position_embeddings": max_length}
    if case.text.startswith("gemma4"):
        text_sizes["vocab_size_per_layer_input"] = vocab_size
    text = tiny_config(case.text, {**text_sizes, **case.text_changes})
    fields = {**case.fields, **{field: ids(token) for field, token in case.ids.items()}}
    config_class = CONFIG_MAPPING[case.model_type or name]
    config = config_class(text_config=text.to_dict(), vision_config=dict(case.vision), **fields)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    spread(model)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
