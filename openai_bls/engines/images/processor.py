"""Processor of a vision-language model, transformers' own: from text and images to token ids and pixel tensors.

Preprocessing asks it how many tokens an image becomes, the embedded engine for its pixels, the builder whether there
is one. Nothing of transformers is imported before a processor is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from openai_bls.core.checkpoint import read_json
from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.core.media import Image

logger = logging.getLogger(__name__)

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Files of a checkpoint that make a processor, next to its tokenizer's."""

_LEAST_PIXELS = 4
"""Width and height of the smallest image: of one with fewer rows transformers takes the rows for colour channels."""
_CACHED_SIZES = 256
"""Lists of image sizes whose expansions are kept."""
_SMALL_BYTES = 1 << 16
"""Bytes beyond which an array that the image processor returns is pixels, which are not kept."""
_PROOFS = (((96, 128),), ((200, 60), (60, 200)))
"""Lists of sizes of which an image processor must make the same from blank images as from others."""
_NOT_FOR_THE_MODEL = ("input_ids", "attention_mask", "labels")

Sizes = Sequence[tuple[int, int]]
"""Width and height in pixels of each image."""
_Sizes = tuple[tuple[int, int], ...]
_Outcome = tuple[Any, Any]
"""Arrays that the image processor returns, and the text that stands for each image."""


class ImageError(Exception):
    """Images that the processor refuses, which is the request's fault.

    Args:
        message: text for the client.
        at: index of the image at fault; None if that is not known.
        code: OpenAI's code for it.
    """

    def __init__(self, message: str, at: int | None = None, code: str = "invalid_image") -> None:
        super().__init__(message)
        self.at = at
        self.code = code


def has_processor(folder: Path) -> bool:
    """True if `folder` holds the files of a processor."""
    return any((folder / name).is_file() for name in PROCESSOR_FILES)


class VisionProcessor:
    """The processor in a folder, for images and text. Any thread may use it."""

    def __init__(self, folder: Path, tokenizer: Any = None) -> None:
        """Load it.

        Args:
            folder: folder with the files of a tokenizer and of a processor.
            tokenizer: tokenizer to use; None loads that of the folder.

        Raises:
            EngineLoadError: it does not load, or transformers has none that tells where images stand in a text.
        """
        try:
            self._processor = _load(folder, tokenizer)
        except ImportError as error:
            raise EngineLoadError(f"the model's image processor needs a package: {first_line(error)}") from None
        except Exception as error:  # each class raises its own for files that it cannot use
            raise EngineLoadError(f"the model's image processor does not load: {first_line(error)}") from None
        token = getattr(self._processor, "image_token", None)
        if not isinstance(token, str) or not token:
            raise EngineLoadError(
                f"transformers' {type(self._processor).__name__} has no placeholder that stands for an image in a text"
            )
        self.image_token: str = token
        """Placeholder of one image in a text."""
        inner = self._processor.tokenizer
        added: dict[int, Any] = inner.added_tokens_decoder
        names = [token, getattr(inner, "image_token", None) or token]
        found = {*self._processor.image_token_ids, *inner.convert_tokens_to_ids(names)}
        self.image_token_ids = frozenset(one for one in found if one in added)
        """Ids of tokens that stand for a part of an image or for a border of its parts."""
        names += [*self._processor.all_special_multimodal_tokens, *(str(added[one]) for one in self.image_token_ids)]
        self.reserved = tuple(dict.fromkeys(names))
        """Texts that stand for images or other media, which nothing that a client writes may hold."""
        self.chat_template: str | dict[str, str] | None = self._processor.chat_template
        self._wants_tensors = "return_tensors" in (getattr(self._processor, "text_kwargs", None) or {})
        self._known: OrderedDict[_Sizes, _Outcome] = OrderedDict()
        self._lock = threading.Lock()
        self._measuring = threading.Lock()
        """Held while images of zeros are looked at: those of one prompt may be a gigabyte."""
        self.takes_blanks = False
        """A new size costs no pixels."""
        self.takes_blanks = self._learns_blanks()

    def expand(self, text: str, sizes: Sizes, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text, each placeholder replaced as the model reads an image of that size.

        Args:
            text: text with a placeholder for each image.
            sizes: sizes of the images, in the order of their placeholders.
            add_special_tokens: whether the tokenizer adds its own special tokens, such as a BOS.

        Raises:
            ImageError: there are more or fewer placeholders than images, or the processor refuses a size.
        """
        key = tuple((width, height) for width, height in sizes)
        try:
            return self._expanded_once(text, key, add_special_tokens=add_special_tokens)
        except ImageError as error:
            if error.at is None:
                error.at = self._first_refused(key)
            raise

    def _first_refused(self, key: _Sizes) -> int | None:
        """Index of the first image that is refused without the others as well."""
        for at, size in enumerate(key):
            try:
                self._expanded_once(self.image_token, (size,), add_special_tokens=False)
            except ImageError:
                return at
        return None

    def _expanded_once(self, text: str, key: _Sizes, *, add_special_tokens: bool) -> list[int]:
        known = self._known_of(key)
        if known is not None or self.takes_blanks:
            return self._expanded(text, key, known, add_special_tokens=add_special_tokens)
        with self._measuring:
            # Another may have had the same sizes meanwhile.
            return self._expanded(text, key, self._known_of(key), add_special_tokens=add_special_tokens)

    def _known_of(self, key: _Sizes) -> _Outcome | None:
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        return known

    def _expanded(self, text: str, key: _Sizes, known: _Outcome | None, *, add_special_tokens: bool) -> list[int]:
        from PIL import Image as PillowImage

        from openai_bls.engines.images import blanks

        def made() -> list[Any]:
            if known is not None:
                # What is known of the sizes takes the place of the pixels, which are not looked at then.
                return [PillowImage.new("RGB", (_LEAST_PIXELS, _LEAST_PIXELS)) for _ in key]
            if self.takes_blanks:
                return [blanks.Picture(size) for size in key]
            return [PillowImage.new("RGB", size) for size in key]

        # Some ask for torch's tensors by default, which is not there in preprocessing.
        more = {"return_tensors": "np"} if self._wants_tensors else {}
        with blanks.asking() if self.takes_blanks and known is None else contextlib.nullcontext():
            found = self._run(text, key, made, add_special_tokens, known, **more)
        ids = found["input_ids"][0]
        as_list: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        return as_list

    def _learns_blanks(self) -> bool:
        """Have the image processor take blank images; False if it is none on numpy, or makes something else of them."""
        inner = self._processor.image_processor
        if getattr(inner, "backend", None) != "pil":
            return False
        from openai_bls.engines.images import blanks

        blanks.teach(inner)
        same = all(self._probe(sizes, is_blank=False) == self._probe(sizes, is_blank=True) for sizes in _PROOFS)
        if not same:
            logger.warning("%s does not take blank images: each new size costs its pixels", type(inner).__name__)
        return same

    def _probe(self, sizes: _Sizes, *, is_blank: bool) -> list[int]:
        """Token ids of images of these sizes; empty if they are refused."""
        self.takes_blanks = is_blank
        try:
            return self.expand(self.image_token * len(sizes), sizes)
        except ImageError:
            return []
        finally:
            self._known.clear()

    def plain(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens of the tokenizer's own, each placeholder as it stands."""
        ids: list[int] = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def count(self, token_ids: Sequence[int]) -> int:
        """Tokens among `token_ids` that stand for images."""
        if self.image_token_ids.isdisjoint(token_ids):
            # Of a text alone, in a third of the time.
            return 0
        return sum(map(self.image_token_ids.__contains__, token_ids))

    def inputs(self, text: str, images: Sequence[Image], *, add_special_tokens: bool = False) -> Mapping[str, Any]:
        """Arguments of the model's first pass over a prompt.

        Args:
            text: text with a placeholder for each image.
            images: images in the order of their placeholders.
            add_special_tokens: see `expand`.

        Returns:
            `input_ids`, [1, tokens], and the model's own arguments, such as `pixel_values`: tensors of torch.

        Raises:
            ImageError: see `expand`.
        """
        from PIL import Image as PillowImage

        def made() -> list[Any]:
            return [PillowImage.frombytes("RGB", (image.width, image.height), image.pixels) for image in images]

        sizes = tuple((image.width, image.height) for image in images)
        found = self._run(text, sizes, made, add_special_tokens, None, return_tensors="pt")
        return {name: value for name, value in found.items() if name == "input_ids" or name not in _NOT_FOR_THE_MODEL}

    def _run(
        self,
        text: str,
        sizes: _Sizes,
        images: Any,
        add_special_tokens: bool,
        known: _Outcome | None,
        **more: Any,
    ) -> Any:
        placeholders = text.count(self.image_token)
        if placeholders != len(sizes):
            raise ImageError(f"the prompt has places for {placeholders} images, and {len(sizes)} are given")
        for at, (width, height) in enumerate(sizes):
            if min(width, height) < _LEAST_PIXELS:
                raise ImageError(
                    f"an image of {width} x {height} pixels is too small: at least {_LEAST_PIXELS} x {_LEAST_PIXELS} "
                    "are needed",
                    at,
                    "image_too_small",
                )
        try:
            with self._processor.remembering(self, sizes, known):
                return self._processor(images=[images()], text=[text], add_special_tokens=add_special_tokens, **more)
        except Exception as error:
            # Each class checks sizes in its own words, or fails in the arithmetic on a size that it was not made for.
            listed = ", ".join(f"{width} x {height}" for width, height in sizes)
            reason = f"the model's image processor refuses the images ({listed}): {first_line(error)}"
            raise ImageError(reason) from error

    def remember(self, sizes: _Sizes, outcome: _Outcome) -> None:
        """Keep what the image processor made of images of these sizes, without the pixels."""
        processed, replacements = outcome
        kept = {name: _without_pixels(value) for name, value in processed.items()}
        with self._lock:
            self._known[sizes] = (kept, replacements)
            while len(self._known) > _CACHED_SIZES:
                self._known.popitem(last=False)


def _without_pixels(value: Any) -> Any:
    """`value` with zeros that take no memory in the place of large arrays."""
    if isinstance(value, list | tuple):
        return [_without_pixels(one) for one in value]
    if getattr(value, "nbytes", 0) <= _SMALL_BYTES:
        return value
    import numpy as np

    return np.broadcast_to(np.zeros((), np.float32), tuple(value.shape))


def _load(folder: Path, tokenizer: Any) -> Any:
    """The processor in `folder`, without the parts for video and audio, which need further packages."""
    from transformers import AutoImageProcessor, AutoTokenizer

    found = _class(folder)

    class ImagesAndText(found):  # type: ignore[misc,valid-type]
        """A processor that takes images and text."""

        _task = threading.local()

        @classmethod
        def _get_arguments_from_pretrained(cls, path: Any, processor_dict: Any = None, **more: Any) -> list[Any]:
            parts: list[Any] = []
            for name in found.get_attributes():
                if name == "tokenizer":
                    parts.append(
                        tokenizer or AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
                    )
                elif name == "image_processor":
                    parts.append(
                        AutoImageProcessor.from_pretrained(path, local_files_only=True, trust_remote_code=False)
                    )
                else:
                    parts.append(None)
            return parts

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument is None:
                return None
            return super().check_argument_for_proper_class(argument_name, argument)

        def _process_images(self, images: Any, **more: Any) -> Any:
            owner, sizes, known = self._task.now
            if known is not None:
                return dict(known[0]), list(known[1])
            outcome = super()._process_images(images, **more)
            owner.remember(sizes, outcome)
            return outcome

        @contextlib.contextmanager
        def remembering(self, owner: VisionProcessor, sizes: Any, known: Any) -> Iterator[None]:
            self._task.now = owner, sizes, known
            try:
                yield
            finally:
                del self._task.now

    ImagesAndText.__name__ = ImagesAndText.__qualname__ = found.__name__
    return ImagesAndText.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _class(folder: Path) -> Any:
    """transformers' class of the processor in `folder`, by its files or by its model."""
    from transformers.models.auto import processing_auto

    named = [_field(folder / name, "processor_class") for name in (*PROCESSOR_FILES, "tokenizer_config.json")]
    kind = _field(folder / "config.json", "model_type")
    for name in (*named, class_name(kind)):
        found = processing_auto.processor_class_from_name(name) if name else None
        if found is not None:
            return _undecorated(found) if getattr(found, "is_dummy", False) else found
    raise ValueError(f"transformers has no processor for it (model_type {kind!r})")


def _field(path: Path, name: str) -> str:
    """A text in a JSON file; empty if there is none."""
    return str(read_json(path).get(name) or "") if path.is_file() else ""


def _undecorated(dummy: Any) -> Any:
    """The class behind one that asks for torchvision, where it can do with Pillow; `dummy` if it cannot.

    Pixtral's says so for a function that the module for Pillow has as well.
    """
    from transformers.models.auto import processing_auto

    kinds = [kind for kind, name in processing_auto.PROCESSOR_MAPPING_NAMES.items() if name == dummy.__name__]
    for kind in kinds:
        package = f"transformers.models.{kind}"
        with contextlib.suppress(ImportError, AttributeError):
            pillow = importlib.import_module(f"{package}.image_processing_pil_{kind}")
            sys.modules.setdefault(f"{package}.image_processing_{kind}", pillow)
            return getattr(importlib.import_module(f"{package}.processing_{kind}"), dummy.__name__)
    return dummy


def class_name(model_type: str) -> str | None:
    """Name of the class of processors that transformers has for a type of models; None if it has none."""
    from transformers.models.auto import processing_auto

    names = processing_auto.PROCESSOR_MAPPING_NAMES.get(model_type)
    return names if isinstance(names, str) or names is None else names[0]
