"""Random adapters, made and run by peft, whose releases transformers' own calls of it may be ahead of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from openai_bls.core.manifest import LoraSettings, load_manifest, write_manifest

QUERIES: dict[str, Any] = {"r": 2, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]}
EVERYTHING: dict[str, Any] = {
    "r": 4,
    "lora_alpha": 8,
    "target_modules": "all-linear",
    "use_rslora": True,
    "rank_pattern": {"down_proj": 6, r"0\.self_attn\.o_proj": 1},
    "alpha_pattern": {"gate_proj": 3},
}


def load_model(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def make_adapter(checkpoint: Path, folder: Path, seed: int = 1, std: float = 0.2, **settings: Any) -> Path:
    """A folder with an adapter that changes most answers."""
    torch.manual_seed(seed)
    config = LoraConfig(init_lora_weights=False, **settings)
    model = get_peft_model(load_model(checkpoint), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=std)
    model.save_pretrained(str(folder))
    return folder


class Reference:
    """transformers and peft on their own: a whole pass for each token."""

    def __init__(self, checkpoint: Path, adapters: dict[str, Path]) -> None:
        self.models: dict[str | None, Any] = {None: load_model(checkpoint)}
        for name, folder in adapters.items():
            self.models[name] = PeftModel.from_pretrained(load_model(checkpoint), str(folder)).eval()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def logprobs(self, name: str | None, token_ids: Sequence[int]) -> torch.Tensor:
        """Shape [tokens, vocabulary]."""
        logits: torch.Tensor = self.models[name](torch.tensor([list(token_ids)])).logits[0]
        return logits.float().log_softmax(-1)

    def greedy(self, name: str | None, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        """Tokens, and their log-probabilities."""
        tokens: list[int] = []
        found: list[float] = []
        for _ in range(count):
            row = self.logprobs(name, [*prompt, *tokens])[-1]
            tokens.append(int(row.argmax()))
            found.append(float(row.max()))
        return tokens, found

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def embedding(self, name: str | None, token_ids: Sequence[int]) -> list[float]:
        """Of the last token."""
        output = self.models[name](torch.tensor([list(token_ids)]), output_hidden_states=True)
        found: list[float] = torch.nn.functional.normalize(output.hidden_states[-1][0, -1], dim=0).tolist()
        return found


def with_adapters(version_dir: Path, target: Path, adapters: dict[str, Path], **settings: Any) -> Path:
    """A copy of an engine with adapters built in, and room as the settings say."""
    shutil.copytree(version_dir, target)
    for name, folder in adapters.items():
        shutil.copytree(folder, target / "lora" / name)
    lora = LoraSettings(adapters={name: f"lora/{name}" for name in adapters}, **settings)
    write_manifest(target, msgspec.structs.replace(load_manifest(target), lora=lora))
    return target
