"""Prompts with images in continuous batching: embeddings and positions, and the keys of pages in the prefix cache."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from openai_bls_transformers.model import vision_forward
from openai_bls_transformers.model.image_inputs import PromptImages

_KNOWN_IMAGES = 1 << 16
"""Images whose numbers are kept: a prompt with one of more finds no pages of an earlier one."""


class ImageNumbers:
    """Numbers that stand for images in the keys of pages, in the place of token ids: below all of these, and none is
    ever given to two images."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._next = -1  # transformers' token that is not known yet

    def of(self, uuid: str) -> int:
        """The number of an image."""
        number = self._numbers.get(uuid)
        if number is None:
            number = self._numbers[uuid] = self.new()
        self._numbers.move_to_end(uuid)
        while len(self._numbers) > _KNOWN_IMAGES:
            self._numbers.popitem(last=False)
        return number

    def new(self) -> int:
        """A number that stands for nothing else."""
        self._next -= 1
        return self._next


class ImagePart(NamedTuple):
    """A part of the tokens of a prompt that stand for images."""

    places: list[int]
    """Indices of the tokens in the prompt."""
    embeddings: torch.Tensor
    """[tokens, size]."""
    layers: list[torch.Tensor]
    """Additions to the outputs of the first layers, [tokens, size] each; empty but for Qwen3-VL."""


class PromptEmbeddings:
    """Embeddings of the tokens of a prompt that stand for images.

    They are computed when a step needs some of them, so not where the prefix cache has the images, and let go of with
    the last piece that does. A sequence that is preempted has them computed again.
    """

    def __init__(
        self, model: Any, prompt_token_ids: Sequence[int], images: PromptImages, numbers: ImageNumbers
    ) -> None:
        """Compute no features yet.

        Args:
            model: model on its device.
            prompt_token_ids: token ids of the prompt, each image expanded.
            images: images of the prompt, with their tokens.
            numbers: numbers of images in keys.
        """
        self._prompt = prompt_token_ids
        self._images = images
        self._keys = {place: numbers.of(one.uuid) for one in images.tokens for place in one.places}
        self._places = sorted(self._keys)
        self._rows: list[torch.Tensor] = []
        """Embeddings of all of `_places`, and additions to the outputs of layers; empty while they are not computed."""
        self._positions = vision_forward.axis_positions(model, prompt_token_ids, images.arguments)
        """Positions of the whole prompt, [axes, tokens]."""
        # Behind an image `generate` counts on along each axis, which the same text in a prompt does not.
        ends_in_image = self.different_positions(len(prompt_token_ids), len(prompt_token_ids) + 1) is not None
        self._key_behind = numbers.new() if ends_in_image else None

    def keyed(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens from the beginning of the sequence on as keys of pages: those of an image are the image's number."""
        keys = [self._keys.get(place, token_id) for place, token_id in enumerate(token_ids)]
        if self._key_behind is not None:
            keys[len(self._prompt) :] = [self._key_behind] * (len(keys) - len(self._prompt))
        return keys

    def extra_keys(self, start: int, end: int) -> tuple[tuple[str, int], ...] | None:
        """Images with tokens from index `start` up to `end`, each with its first token's index there, which may be
        negative; None if there are none."""
        found = [(one.uuid, one.places[0] - start) for one in self._images.tokens if _between(one.places, start, end)]
        return tuple(found) or None

    def positions(self, start: int, end: int) -> torch.Tensor | None:
        """Positions of the sequence's tokens from index `start` up to `end`, [axes, tokens]; None for a single axis."""
        known = self._positions
        if known is None:
            return None
        length = known.shape[1]
        behind = torch.arange(max(start, length), max(end, length), dtype=known.dtype) - length + 1
        return torch.cat([known[:, start:end], known[:, -1:] + behind], dim=1)

    def different_positions(self, start: int, end: int) -> torch.Tensor | None:
        """`positions`; None if they are the same on all axes, as those of text are."""
        found = self.positions(start, end)
        return None if found is None or torch.equal(found, found[:1].expand_as(found)) else found

    def part(self, model: Any, start: int, end: int) -> ImagePart | None:
        """Image tokens from index `start` up to `end`; None if there are none."""
        first, last = bisect_left(self._places, start), bisect_left(self._places, end)
        if first == last:
            return None
        if not self._rows:
            self._rows = self._computed(model)
        embeddings, *layers = (every[first:last] for every in self._rows)
        places = self._places[first:last]
        if last == len(self._places):
            self._rows = []
        return ImagePart(places, embeddings, layers)

    def _computed(self, model: Any) -> list[torch.Tensor]:
        arguments = self._images.arguments
        found = vision_forward.language_inputs(model, self._prompt, arguments)
        for value in arguments.values():  # the sequence may end while the device reads them
            if torch.is_tensor(value) and value.is_cuda:
                value.record_stream(torch.cuda.current_stream())
        rows = found["inputs_embeds"][0, torch.tensor(self._places, device=model.device)]
        return [rows, *(found.get("deepstack_visual_embeds") or ())]


def _between(places: Sequence[int], start: int, end: int) -> bool:
    return bisect_left(places, start) < bisect_left(places, end)
