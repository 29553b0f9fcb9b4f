"""Image inputs of requests: pixels to the model's tensors, by its own processor, on other threads than the engine's."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from openai_bls.core.engine_types import EngineInfo, GenerationRequest
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.core.media import MediaPrompt
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.images.processor import ImageError, VisionProcessor
from openai_bls.engines.keyed_futures import KeyedFutures

logger = logging.getLogger(__name__)

_MOST_THREADS = 4


class ImageTokens(NamedTuple):
    """Tokens of a prompt whose embeddings are an image's."""

    uuid: str
    """Hash of the image; of several joined where the processor does not read each of them as it reads it alone."""
    places: list[int]
    """Indices in the prompt, ascending."""


@dataclasses.dataclass(eq=False)
class PromptImages:
    """Images of a prompt, as its model takes them: the same object for all choices of a request."""

    prompt_token_ids: Sequence[int]
    """Token ids of the prompt, each image expanded."""
    media: MediaPrompt
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The model's arguments for them, such as `pixel_values`, on its device; empty until they are prepared."""
    tokens: Sequence[ImageTokens] = ()
    """Tokens of each image; empty for a model whose configuration names no token for images."""
    error: str = ""
    """Message to the client if they cannot be prepared; else empty."""
    invalid: bool = False
    """The error is the request's fault."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Held while they are prepared."""


class PreparedImages(msgspec.Struct, frozen=True):
    """The images of a request are prepared, or cannot be."""

    key: str
    """Key of the request, which `ImageInputs.start` was given."""


class ImageInputs:
    """Threads that run a processor over the images of requests, those of each API key in turn."""

    def __init__(
        self,
        processor: VisionProcessor,
        model: Any,
        on_prepared: Callable[[PreparedImages], object],
    ) -> None:
        """Start no thread yet.

        Args:
            processor: processor of the model.
            model: model on its device.
            on_prepared: called once for each start, from another thread; not after `cancel` or `close`. It must not
                call back.
        """
        self.processor = processor
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        token_id = getattr(model.config, "image_token_id", None)
        self._token_id = -1 if token_id is None else int(token_id)
        text = model.config.get_text_config()
        self.needs_image = getattr(text, "use_bidirectional_attention", None) is True
        """Prompts without an image are refused: tokens of a prompt see each other (PaliGemma), and what those of text
        alone see is not the same in all of transformers' attentions."""
        self._shared: weakref.WeakValueDictionary[int, PromptImages] = weakref.WeakValueDictionary()
        """Images of live requests by the identity of their `media`, which the choices of a request have in common."""
        self._futures = KeyedFutures(on_prepared)
        threads = max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))
        # A large picture takes a second.
        self._pool = FairExecutor(threads, "images")

    def refusal(self, request: GenerationRequest, info: EngineInfo) -> str | None:
        """Refusal of what a model with images cannot do with this request; None if there is nothing."""
        media = request.media
        if media is None:
            if self.processor.count(request.prompt_token_ids):
                return "the prompt holds a token that stands for an image, and no image is given"
            return "this model takes no prompt without an image" if self.needs_image else None
        for field in ("prompt_logprobs", "lora_name"):
            if getattr(request, field) is not None:
                return f"{field} is not supported by the engine {info.engine} for a prompt with images"
        return None

    def start(self, key: str, request: GenerationRequest) -> PromptImages:
        """Prepare the images of `request`, unless another choice has had them prepared; not after `close`.

        Returns:
            The images, to be kept while the request lives, so that its other choices find them.
        """
        media = request.media
        assert media is not None
        images = self._shared.get(id(media))
        if images is None or images.prompt_token_ids != request.prompt_token_ids:
            images = self._shared[id(media)] = PromptImages(request.prompt_token_ids, media)
        self._futures.start(partial(self._pool.submit, request.owner), key, partial(self._prepared, key, images))
        return images

    def cancel(self, key: str) -> None:
        """Forget a request: what has begun ends by itself, unheard. One that is not known is passed over."""
        self._futures.cancel(key)

    def close(self) -> None:
        """Start no more; what runs ends by itself, unheard."""
        self._futures.close()
        self._pool.close()

    def arguments(self, prompt_token_ids: Sequence[int], media: MediaPrompt) -> dict[str, Any]:
        """The model's arguments for the images of a prompt, on its device.

        Raises:
            ImageError: the processor refuses them, or makes other token ids of the prompt.
        """
        for special in (False, True):
            found = dict(self.processor.inputs(media.text, media.images, add_special_tokens=special))
            if found.pop("input_ids")[0].tolist() == list(prompt_token_ids):
                return {name: self._moved(value) for name, value in found.items()}
        raise ImageError("prompt_token_ids are not those that the model's processor makes of the text and its images")

    def _tokens(self, prompt_token_ids: Sequence[int], media: MediaPrompt) -> list[ImageTokens]:
        """Tokens of each image of a prompt."""
        places = [place for place, token_id in enumerate(prompt_token_ids) if token_id == self._token_id]
        if len(media.images) > 1:
            token = self.processor.image_token
            alone = [self.processor.expand(token, [(image.width, image.height)]) for image in media.images]
            ends = list(itertools.accumulate(ids.count(self._token_id) for ids in alone))
            # LLaVA-OneVision cuts an image into tiles only where it is the only one.
            if ends[-1] == len(places):
                return [
                    ImageTokens(image.uuid, places[start:end])
                    for image, (start, end) in zip(media.images, itertools.pairwise([0, *ends]), strict=True)
                ]
        return [ImageTokens("+".join(image.uuid for image in media.images), places)] if places else []

    def _moved(self, value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        return value.to(self._device, self._dtype) if value.is_floating_point() else value.to(self._device)

    def _prepared(self, key: str, images: PromptImages) -> PreparedImages:
        with images.lock:
            if not images.arguments and not images.error:
                self._prepare(images)
        return PreparedImages(key)

    def _prepare(self, images: PromptImages) -> None:
        began_at = time.monotonic()
        try:
            images.arguments = self.arguments(images.prompt_token_ids, images.media)
            images.tokens = self._tokens(images.prompt_token_ids, images.media)
        except ImageError as error:
            images.error, images.invalid = str(error), True
        except Exception:
            logger.exception("the images of a request cannot be prepared")
            images.error = ENGINE_FAILED
        elapsed_ms = (time.monotonic() - began_at) * 1e3
        logger.debug("%d images prepared in %.1f ms", len(images.media.images), elapsed_ms)
