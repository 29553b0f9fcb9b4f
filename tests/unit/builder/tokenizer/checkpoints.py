"""Tiny tokenizers in the shapes that published checkpoints have, in folders with a config.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.unit.output.text_tokenizers import CORPUS

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_ADDED = [AddedToken(token, special=True) for token in ("<|user|>", "<|assistant|>", "<|end|>")]


@cache
def byte_level() -> Tokenizer:
    """Llama 3's and Qwen's kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(_ADDED)
    return tokenizer


@cache
def metaspace() -> Tokenizer:
    """Llama 2's, Mistral's and Phi-3's kind: a space before each text, bytes for what the vocabulary has not."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    learned = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [token for token in learned["vocab"] if token not in tokens]
    merges = [tuple(pair) for pair in learned["merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(_ADDED)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], **model: Any) -> Path:
    """Write a tokenizer with `config` as its tokenizer_config.json, and a config.json with the fields of `model`."""
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    sized = {"model_type": "llama", "vocab_size": tokenizer.get_vocab_size() + 8, "eos_token_id": 2} | model
    (folder / "config.json").write_text(json.dumps(sized))
    return folder
