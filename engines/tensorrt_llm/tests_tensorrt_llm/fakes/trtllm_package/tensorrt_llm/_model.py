"""What gives scores: the real transformers model on the CPU in float32, or a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tensorrt_llm import _settings


class Cursor(Protocol):
    """One sequence in a model."""

    def advance(self, token_ids: Sequence[int]) -> Any:
        """Take in tokens and give the scores of what comes next, shape [vocab_size]."""


class Model(Protocol):
    """Makes cursors."""

    vocab_size: int

    def start(self, adapter: Path | None, end_id: int | None) -> Cursor:
        """A new sequence."""


def load(folder: Path, weights: Sequence[Path]) -> Model:
    """The model whose config.json is in `folder` and whose tensors are in `weights`."""
    scripted = _settings.scripted_tokens()
    if scripted is not None:
        return _Scripted(scripted, _vocab_size(folder))
    return _Transformers(folder, weights)


def _vocab_size(folder: Path) -> int:
    try:
        return int(json.loads((folder / "config.json").read_text()).get("vocab_size", 4096))
    except OSError:
        return 4096


class _Scripted:
    def __init__(self, tokens: list[int], vocab_size: int) -> None:
        self.tokens = tokens
        self.vocab_size = max(vocab_size, *(token + 1 for token in tokens), 1) if tokens else vocab_size

    def start(self, adapter: Path | None, end_id: int | None) -> _ScriptedCursor:
        return _ScriptedCursor(self, end_id)


class _ScriptedCursor:
    """The tokens of the script, then the end token; round and round if there is none."""

    def __init__(self, model: _Scripted, end_id: int | None) -> None:
        self._model = model
        self._given = -1
        self._end_id = end_id

    def advance(self, token_ids: Sequence[int]) -> Any:
        import torch

        self._given += 1
        tokens = self._model.tokens
        ended = self._given >= len(tokens) and self._end_id is not None
        token = self._end_id if ended else (tokens[self._given % len(tokens)] if tokens else 0)
        scores = torch.zeros(max(self._model.vocab_size, (token or 0) + 1))
        # Far above the others, so that sampling follows the script too, and lower for each id so that none are equal.
        scores -= torch.arange(len(scores)) * 1e-4
        scores[token] = 50.0
        return scores


class _Transformers:
    def __init__(self, folder: Path, weights: Sequence[Path]) -> None:
        import torch
        import transformers
        from safetensors.torch import load_file

        config = transformers.AutoConfig.from_pretrained(folder)
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        state: dict[str, Any] = {}
        for path in weights:
            state.update(load_file(path))
        missing, _ = model.load_state_dict({key: value.float() for key, value in state.items()}, strict=False)
        model.tie_weights()
        tied = set(getattr(model, "_tied_weights_keys", None) or ())
        lost = [key for key in missing if key not in tied and "lm_head" not in key]
        if lost:
            raise RuntimeError(f"the checkpoint lacks {lost[:3]}")
        self._model = model.eval()
        self._adapted: dict[Path, Any] = {}
        self.vocab_size = int(config.vocab_size)

    def start(self, adapter: Path | None, end_id: int | None) -> _TransformersCursor:
        if adapter is None:
            return _TransformersCursor(self._model)
        if adapter not in self._adapted:
            self._adapted[adapter] = adapted(self._model, adapter)
        return _TransformersCursor(self._adapted[adapter])


class _TransformersCursor:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: Any = None

    def advance(self, token_ids: Sequence[int]) -> Any:
        import torch

        with torch.inference_mode():
            found = self._model(
                input_ids=torch.tensor([list(token_ids)]), past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        self._cache = found.past_key_values
        return found.logits[0, -1].float()


def adapted(model: Any, adapter: Path) -> Any:
    """A copy of `model` with a PEFT adapter's weights added to its own."""
    import copy

    import torch
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    changed = copy.deepcopy(model)
    scale = config["lora_alpha"] / config["r"]
    with torch.no_grad():
        for key, a in tensors.items():
            if not key.endswith("lora_A.weight"):
                continue
            name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = tensors[key.replace("lora_A", "lora_B")]
            changed.get_parameter(f"{name}.weight").add_(scale * (b.float() @ a.float()))
    return changed
