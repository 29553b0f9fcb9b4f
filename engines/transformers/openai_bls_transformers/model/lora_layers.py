"""Linear layers with room for LoRA adapters: each token's slot says which of them is added to a layer's output.

The matrices of all slots lie one after another: a layer's output is `W x + B (A x)`, where of `A x` only the columns of
the token's slot pass, and none for the base model. So a step is two small products more in each layer, whatever
adapters meet in it, and the same operations on the same tensors, as CUDA graphs need.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from openai_bls.core.engine import LoraError
from openai_bls.engines.adapters import Adapter, require_rank
from openai_bls_transformers.model.fp8_layers import Fp8Linear

_PROBE_TOKENS = 7


class _Layer:
    """A linear layer and the matrices of all slots: A is [columns, inputs], B [outputs, columns]."""

    def __init__(self, module: Any, columns: int) -> None:
        self.module = module
        dtype = module.input_dtype if isinstance(module, Fp8Linear) else module.weight.dtype
        self.a = module.weight.new_zeros(columns, module.in_features, dtype=dtype)
        self.b = module.weight.new_zeros(module.out_features, columns, dtype=dtype)
        self.slots: set[int] = set()
        """Slots whose adapter changes this layer."""


class LoraLayers:
    """A model's layers with slots 1 to `max_loras`; slot 0 is the base model."""

    def __init__(self, model: Any, max_loras: int, max_rank: int) -> None:
        """Make room in `model`, a transformers causal language model on its device that runs as it was loaded."""
        self._rank = max_rank
        columns = max_loras * max_rank
        slot_of_column = torch.arange(columns, device=model.device) // max_rank + 1
        slots = torch.arange(max_loras + 1, device=model.device).unsqueeze(1)
        self._others = slots != slot_of_column
        """Shape [slots, columns]: the columns of other slots."""
        self._blocked: torch.Tensor | None = None
        """Columns of other slots for the tokens of the running pass: [tokens, columns] or [sequences, 1, columns]; None
        if no token has an adapter."""
        self._kept_blocked: torch.Tensor | None = None
        """Rows of `_blocked` that the last layer keeps, [rows, columns]; None if it keeps all."""
        # A captured graph runs all of its operations, whatever the tokens of a step are.
        self._always = model.device.type == "cuda"
        self._any = False
        self._layers = {path: _Layer(module, columns) for path, module in _reached(model).items()}
        for layer in self._layers.values():
            layer.module.forward = functools.partial(self._forward, layer)
        model.register_forward_pre_hook(self._before_step, with_kwargs=True)
        model.register_forward_hook(self._after_step, with_kwargs=True, always_call=True)
        model.lora_layers = self

    def check(self, adapter: Adapter) -> None:
        """Raise `LoraError` if an adapter does not fit the model, or the slots."""
        require_rank(adapter, self._rank)
        for path, found in adapter.modules.items():
            layer = self._layers.get(path)
            if layer is None:
                raise LoraError(f"the adapter changes {path}, which is no linear layer of this model that can have one")
            size = (layer.module.in_features, layer.module.out_features)
            if (found.inputs, found.outputs) != size:
                raise LoraError(
                    f"the adapter is of another model: {path} has {found.inputs} inputs and {found.outputs} outputs "
                    f"there, {size[0]} and {size[1]} here"
                )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def write(self, slot: int, adapter: Adapter, weights: dict[str, torch.Tensor]) -> None:
        """Put an adapter that fits into a slot that no sequence uses; from any thread.

        Raises:
            LoraError: a weight is no number.
        """
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise LoraError("the adapter's weights are not all finite numbers")
        start = (slot - 1) * self._rank
        for path, layer in self._layers.items():
            module = adapter.modules.get(path)
            layer.slots.discard(slot)
            slot_a, slot_b = layer.a[start : start + self._rank], layer.b[:, start : start + self._rank]
            slot_a.zero_()
            slot_b.zero_()
            if module is None:
                continue
            a, b = (weights[f"base_model.model.{path}.lora_{name}.weight"].float() for name in "AB")
            slot_a[: module.rank] = a.to(slot_a)
            slot_b[:, : module.rank] = (b * adapter.scaling(path)).to(slot_b)
            layer.slots.add(slot)
        if layer.a.device.type == "cuda":
            torch.cuda.synchronize()

    def prepare(self, requests_in_batch: Sequence[Any], row: torch.Tensor) -> None:
        """Write the slot of each token of a step of continuous batching into `row`, the last of the arguments."""
        slots = [_slot(item.state) for item in requests_in_batch]
        self._any = any(slots)
        if self._used:
            lengths = [item.query_length for item in requests_in_batch]
            found = np.repeat(np.array(slots, np.int32), lengths)
            row[: len(found)].copy_(torch.from_numpy(found))

    @property
    def _used(self) -> bool:
        """True if the step takes the slots of its tokens from its arguments."""
        return self._any or self._always

    def _before_step(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Take the slots from the arguments of a step, of which the model gets the columns of its sequences."""
        arguments = kwargs.get("logits_processor_args")
        if arguments is None:  # a plain pass, for which `applied` has said
            return
        if self._used:
            start = arguments.storage_offset() + (arguments.shape[0] - 1) * arguments.stride(0)
            slots = arguments.as_strided((kwargs["input_ids"].shape[-1],), (1,), start)
            self._blocked = self._others.index_select(0, slots)
            kept = kwargs.get("last_layer_rows")
            self._kept_blocked = None if kept is None else self._blocked.index_select(0, kept)

    def _after_step(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Leave nothing of a step to the plain passes between two steps."""
        if kwargs.get("logits_processor_args") is not None:
            self._blocked = self._kept_blocked = None

    def _forward(self, layer: _Layer, x: torch.Tensor) -> torch.Tensor:
        module = layer.module
        output: torch.Tensor = type(module).forward(module, x)
        blocked = self._blocked
        if blocked is None or not (layer.slots or self._always):
            return output
        if self._kept_blocked is not None and x.shape[-2] != len(blocked):
            blocked = self._kept_blocked
        return output + linear(linear(x, layer.a).masked_fill(blocked, 0), layer.b)

    @contextlib.contextmanager
    def of_rows(self, slots: Sequence[int]) -> Iterator[None]:
        """Run plain passes over sequences with these slots, a row each."""
        if any(slots):
            self._blocked = self._others[torch.tensor(slots, device=self._others.device)].unsqueeze(1)
        try:
            yield
        finally:
            self._blocked = None


def layers_of(model: Any) -> LoraLayers | None:
    """The layers of a model that has room for adapters."""
    found: LoraLayers | None = getattr(model, "lora_layers", None)
    return found


def applied(model: Any, slots: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    """Run plain passes of `model` over sequences with these slots, a row each."""
    layers = layers_of(model)
    return contextlib.nullcontext() if layers is None else layers.of_rows(slots)


def _slot(state: Any) -> int:
    sampling = state.logit_processor_kwargs.get("sampling")
    return 0 if sampling is None else int(sampling.lora_slot)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _reached(model: Any) -> dict[str, Any]:
    """Linear layers whose input has a row for each token, in the tokens' order: experts' have not, nor has the head."""
    found: dict[str, Any] = {}
    head = model.get_output_embeddings()

    def watch(path: str, module: Any, args: Any) -> None:
        if args and args[0].dim() == 3 and args[0].shape[:2] == (1, _PROBE_TOKENS):
            found[path] = module

    hooks = [
        module.register_forward_pre_hook(functools.partial(watch, path))
        for path, module in model.named_modules()
        if type(module) in (nn.Linear, Fp8Linear) and module is not head
    ]
    try:
        ids = torch.zeros(1, _PROBE_TOKENS, dtype=torch.long, device=model.device)
        model.base_model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found
