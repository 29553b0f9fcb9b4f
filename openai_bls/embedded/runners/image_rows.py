"""Inputs of a step that reads images: embeddings in the place of token ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

logger = logging.getLogger(__name__)

Fail = Callable[[Any, Exception], None]
"""Ends a sequence, whose state is the first argument, with an error."""
Pieces = list[tuple[list[int], torch.Tensor]]
"""Rows of a step that are an image's, with their embeddings, [rows, size]: one entry per sequence."""


def image_pieces(model: Any, requests: Sequence[Any], fail: Fail) -> Pieces:
    """Pieces of images in the step of `requests`, whose features are computed where they are needed first.

    Args:
        model: model on its device.
        requests: transformers' states of the step, whose inputs are prepared.
        fail: called for a sequence whose images cannot be had, which the step then reads as they are not.
    """
    pieces: Pieces = []
    row = 0
    for item in requests:
        images = getattr(item.state, "images", None)  # warming up makes sequences of its own
        if images is not None:
            start = item.state.position_offset - item.query_length
            try:
                found = images.rows(model, start, item.state.position_offset)
            except Exception as error:
                logger.exception("the images of sequence %s cannot be read", item.state.request_id)
                fail(item.state, error)
                found = None
            if found is not None:
                places, embeddings = found
                pieces.append(([row + place - start for place in places], embeddings))
        row += item.query_length
    return pieces


def embedded(model: Any, batch_data: dict[str, Any], pieces: Pieces) -> dict[str, Any]:
    """Arguments of the model for a step: `batch_data`, with embeddings where there are pieces of images."""
    if not pieces:
        return batch_data
    embeddings = model.get_input_embeddings()(batch_data["input_ids"]).clone()
    rows = torch.tensor([row for places, _ in pieces for row in places], device=embeddings.device)
    embeddings[0, rows] = torch.cat([found for _, found in pieces])
    return {name: value for name, value in batch_data.items() if name != "input_ids"} | {"inputs_embeds": embeddings}
