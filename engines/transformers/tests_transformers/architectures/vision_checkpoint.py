"""Maker of tiny random vision-language checkpoints, with a processor and a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, PreTrainedTokenizerFast

from tests.unit.core_support import tiny_tokenizer
from tests_transformers.architectures.checkpoint import MAX_LENGTH, spread, tiny_config
from tests_transformers.architectures.vision_table import TOKENS, VisionCase

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}PLACEHOLDER"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_processor(folder: Path, case: VisionCase, chat_template: str = CHAT_TEMPLATE) -> Any:
    """Files of a tokenizer and of the processor of `case`; returns the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    # A copy: all tests of a process share the other.
    backend = Tokenizer.from_str(tiny_tokenizer().to_str())
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=dict(case.tokens),
        chat_template=chat_template.replace("PLACEHOLDER", case.placeholder),
    )
    tokenizer.save_pretrained(folder)
    files = {
        "preprocessor_config.json": {**case.images, "processor_class": case.processor},
        "processor_config.json": {**case.of_processor, "processor_class": case.processor},
    }
    for name, contents in files.items():
        (folder / name).write_text(json.dumps(contents), encoding="utf-8")
    return tokenizer


def make_vision_checkpoint(folder: Path, name: str, case: VisionCase, *, max_length: int = 4 * MAX_LENGTH) -> None:
    """A tiny random model of `case` with its processor, as a hub has it."""
    tokenizer = write_processor(folder, case)
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
