"""Parts of a vision-language model: its language model, and what that is called with for a prompt with images.

Image features are merged into the embeddings of a prompt, and positions made of grids, by the model's own code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationMixin

from openai_bls_transformers.model.prompt_forward import plain_attention

_AXES = 3
"""Axes of positions: time, height and width."""


def language_modules(model: Any) -> Iterator[Any]:
    """Modules of a model, those of a vision tower left out."""
    decoder = model.get_decoder()
    yield from model.modules() if decoder is model.base_model else decoder.modules()
    head = model.get_output_embeddings()
    if decoder is not model.base_model and head is not None:
        yield head


@torch.no_grad()  # type: ignore[untyped-decorator]
def axis_positions(model: Any, token_ids: Sequence[int], images: Mapping[str, Any]) -> torch.Tensor | None:
    """Positions of a prompt's tokens on several axes, int32 [axes, tokens] on the CPU; None if they have one.

    Args:
        model: a transformers vision-language model, on its device.
        token_ids: token ids of the prompt, each image expanded.
        images: the model's arguments for the images.
    """
    plain = GenerationMixin._prepare_position_ids_for_generation
    if type(model)._prepare_position_ids_for_generation is plain:
        return None
    ids = torch.tensor([token_ids], device=model.device)
    positions = model._prepare_position_ids_for_generation(ids, {"attention_mask": None, **images})
    found: torch.Tensor = positions[-_AXES:, 0].to("cpu", torch.int32)  # the plain position may come before
    return found


class _ReachedError(Exception):
    """The language model is called."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


@torch.no_grad()  # type: ignore[untyped-decorator]
def language_inputs(model: Any, token_ids: Sequence[int], images: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with which a model calls its language model in a pass over a whole prompt.

    Args:
        model: a transformers vision-language model, on its device.
        token_ids: token ids of the prompt, each image expanded.
        images: the model's arguments for the images.

    Returns:
        `inputs_embeds`, [1, tokens, size], and whatever else the model hands on.
    """

    def reached(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _ReachedError(kwargs)

    ids = torch.tensor([token_ids], device=model.device)
    hook = model.get_decoder().register_forward_pre_hook(reached, with_kwargs=True)
    try:
        with plain_attention(model):
            model.base_model(input_ids=ids, use_cache=False, **images)
    except _ReachedError as reason:
        return reason.arguments
    finally:
        hook.remove()
    raise RuntimeError(f"{type(model).__name__} does not call its language model")
