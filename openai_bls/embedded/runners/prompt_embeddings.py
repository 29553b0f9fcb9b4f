"""Prompts with images in continuous batching: their embeddings, and the keys of their pages in the prefix cache."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from openai_bls.embedded.model import vision_forward
from openai_bls.embedded.model.image_inputs import PromptImages

_KNOWN_IMAGES = 1 << 16
"""Images whose numbers are kept: a prompt with one of more finds no pages of an earlier one."""


class ImageNumbers:
    """Numbers that stand for images in the keys of pages, in the place of token ids: below all of these, and none is
    ever given to two images."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._next = -2  # -1 is transformers' token that is not known yet

    def of(self, uuid: str) -> int:
        """The number of an image."""
        number = self._numbers.get(uuid)
        if number is None:
            number, self._next = self._next, self._next - 1
            self._numbers[uuid] = number
        self._numbers.move_to_end(uuid)
        while len(self._numbers) > _KNOWN_IMAGES:
            self._numbers.popitem(last=False)
        return number


class PromptEmbeddings:
    """Embeddings of the tokens of a prompt that stand for images.

    They are computed when a step needs some of them, so not where the prefix cache has the images, and let go of with
    the last piece that does. A sequence that is preempted has them computed again.
    """

    def __init__(self, prompt_token_ids: Sequence[int], images: PromptImages, numbers: ImageNumbers) -> None:
        """Compute nothing yet.

        Args:
            prompt_token_ids: token ids of the prompt, each image expanded.
            images: images of the prompt, with their tokens.
            numbers: numbers of images in keys.
        """
        self._prompt = prompt_token_ids
        self._images = images
        self._keys = {place: numbers.of(one.uuid) for one in images.tokens for place in one.places}
        self._places = sorted(self._keys)
        self._rows: torch.Tensor | None = None

    def keyed(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens from the beginning of the sequence on as keys of pages: those of an image are the image's number."""
        return [self._keys.get(place, token_id) for place, token_id in enumerate(token_ids)]

    def extra_keys(self, start: int, end: int) -> tuple[tuple[str, int], ...] | None:
        """Images with tokens from index `start` up to `end`, each with its first token's index there, which may be
        negative; None if there are none."""
        found = [(one.uuid, one.places[0] - start) for one in self._images.tokens if _between(one.places, start, end)]
        return tuple(found) or None

    def rows(self, model: Any, start: int, end: int) -> tuple[list[int], torch.Tensor] | None:
        """Embeddings of image tokens from index `start` up to `end`.

        Returns:
            Indices of the tokens, and their embeddings, [tokens, size]; None if there are none.
        """
        first, last = bisect_left(self._places, start), bisect_left(self._places, end)
        if first == last:
            return None
        if self._rows is None:
            arguments = self._images.arguments
            embeddings = vision_forward.language_inputs(model, self._prompt, arguments)["inputs_embeds"]
            for value in arguments.values():  # the sequence may end while the device reads them
                if torch.is_tensor(value) and value.is_cuda:
                    value.record_stream(torch.cuda.current_stream())
            self._rows = embeddings[0, torch.tensor(self._places, device=embeddings.device)]
        rows = self._rows[first:last]
        if last == len(self._places):
            self._rows = None
        return self._places[first:last], rows


def _between(places: Sequence[int], start: int, end: int) -> bool:
    return bisect_left(places, start) < bisect_left(places, end)
