"""Inputs of a step that reads images: their embeddings and positions, row by row.

Positions on the first axis are written with the step's other inputs, on the host: text has the same on all axes.
Embeddings, and what else an image's tokens have, come in where the model calls its language model.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs

from openai_bls_transformers.runners.prompt_embeddings import ImagePart

logger = logging.getLogger(__name__)

Fail = Callable[[Any, Exception], None]
"""Ends a sequence, whose state is the first argument, with an error."""


class ImageRows(NamedTuple):
    """Rows of a step for a sequence with images that are not as those of text."""

    first: int
    """First row of the sequence."""
    start: int
    """Index of that row's token in the sequence."""
    part: ImagePart | None
    """Tokens of images; None if only positions are otherwise."""
    positions: torch.Tensor | None
    """Positions of the sequence's tokens in the step, [axes, tokens] on the CPU; None if all axes have the same."""

    @property
    def rows(self) -> list[int]:
        """Rows of `part`."""
        return [] if self.part is None else [self.first + place - self.start for place in self.part.places]


def image_rows(model: Any, requests: Sequence[Any], fail: Fail) -> list[ImageRows]:
    """Rows of images in the step of `requests`, whose features are computed where they are needed first.

    Args:
        model: model on its device.
        requests: transformers' states of the step, whose inputs are prepared.
        fail: called for a sequence whose images cannot be had, which the step then reads as they are not.
    """
    found: list[ImageRows] = []
    for row, start, end, state in _with_images(requests):
        try:
            part = state.images.part(model, start, end)
        except Exception as error:
            logger.exception("the images of sequence %s cannot be read", state.request_id)
            fail(state, error)
            continue
        positions = state.images.different_positions(start, end)
        if part is not None or positions is not None:
            found.append(ImageRows(row, start, part, positions))
    return found


def _with_images(requests: Sequence[Any]) -> Iterator[tuple[int, int, int, Any]]:
    """Sequences with images among those of a step, whose inputs are prepared: (first row, index of the first token,
    index behind the last one, state)."""
    row = 0
    for item in requests:
        if getattr(item.state, "images", None) is not None:  # warming up makes sequences of its own
            end = item.state.position_offset
            yield row, end - item.query_length, end, item.state
        row += item.query_length


@contextlib.contextmanager
def read(model: Any, images: Sequence[ImageRows]) -> Iterator[None]:
    """Let the language model of `model` read images in the passes of this context."""
    if not images:
        yield
        return
    hook = model.get_decoder().register_forward_pre_hook(functools.partial(_insert, images), with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _insert(images: Sequence[ImageRows], module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments of the language model with what the rows of images have in them."""
    changed: dict[str, Any] = {}
    for first, _, _, found in images:
        if found is not None:
            positions = changed.get("position_ids")
            if positions is None:
                positions = changed["position_ids"] = kwargs["position_ids"].expand(len(found), -1, -1).clone()
            positions[:, 0, first : first + found.shape[1]] = found.to(positions)
    parts = [one.part for one in images if one.part is not None]
    if parts:
        embeddings = changed["inputs_embeds"] = kwargs["inputs_embeds"].clone()
        rows = torch.tensor([row for one in images for row in one.rows], device=embeddings.device)
        embeddings[0, rows] = torch.cat([part.embeddings for part in parts])
        if parts[0].layers:
            mask = torch.zeros(embeddings.shape[:2], dtype=torch.bool, device=embeddings.device)
            mask[0, rows] = True
            layers = [torch.cat(layer) for layer in zip(*(part.layers for part in parts), strict=True)]
            changed |= {"visual_pos_masks": mask, "deepstack_visual_embeds": layers}
    return args, kwargs | changed


def install_positions(processor: Any) -> None:
    """Let the inputs of steps have the positions of sequences with images."""
    ios = processor.inputs_and_outputs
    for io in [pair.host_io for pair in ios.io_pairs] if isinstance(ios, ContinuousBatchingAsyncIOs) else [ios]:
        io.prepare_batch_tensors = functools.partial(_prepare, io, io.prepare_batch_tensors)


def _prepare(io: Any, prepare: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    prepare(*args, **kwargs)
    for row, start, end, state in _with_images(io.requests_in_batch):
        positions = state.images.positions(start, end)
        if positions is not None:
            io.position_ids[row : row + end - start].copy_(positions[0])
