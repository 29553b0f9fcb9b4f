"""Tiny models that pool, with random weights, and what transformers makes of texts with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

TEXTS = ("a cat sat", "the dog", "a", "cats and dogs run far " * 4)
PAIRS = (("a cat", "the cat sat"), ("dog", "a"), ("where is the dog?", "the dog ran far, far " * 3), ("a", "a"))

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'"
_WORDS = ("the", "cat", "dog", "sat", "and", "run", "far", "##s", "where", "is")


def write_tokenizer(folder: Path) -> int:
    """A WordPiece tokenizer with token types; the size of its vocabulary."""
    words = [*_SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *_WORDS]
    words = list(dict.fromkeys(words))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=128).save_pretrained(folder)
    return len(words)


def _config(folder: Path, **more: Any) -> BertConfig:
    return BertConfig(
        vocab_size=write_tokenizer(folder),
        # vLLM's attention on a CPU takes heads of 32 and more.
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        # Far from each other, so that a wrong token type or place shows.
        initializer_range=0.3,
        **more,
    )


def write_embedder(folder: Path, sizes: Sequence[int] = (8, 16)) -> Path:
    """A BERT with mean pooling by sentence-transformers' files, whose vectors may be cut."""
    torch.manual_seed(1)
    config = _config(folder, matryoshka_dimensions=list(sizes))
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100, "do_lower_case": False}))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def write_classifier(folder: Path, labels: Sequence[str]) -> Path:
    """A BERT that classifies; with one class it scores pairs."""
    torch.manual_seed(2)
    names = dict(enumerate(labels))
    config = _config(folder, id2label=names, label2id={name: number for number, name in names.items()})
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def embeddings(folder: Path, texts: Sequence[str], size: int | None = None) -> list[list[float]]:
    """Mean of the last hidden states, cut and scaled to length 1."""
    tokenizer, model = BertTokenizerFast.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    found = []
    with torch.inference_mode():
        for text in texts:
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)[:size]
            found.append((mean / mean.norm()).tolist())
    return found


def logits(folder: Path, inputs: Sequence[str] | Sequence[tuple[str, str]]) -> list[torch.Tensor]:
    """Logits of texts or of pairs of texts."""
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        given = [(one,) if isinstance(one, str) else one for one in inputs]
        return [model(**tokenizer(*one, return_tensors="pt")).logits[0] for one in given]
