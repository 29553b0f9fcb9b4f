"""Loader of images: the images that a request names, fetched and decoded, within the limits of the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.core.media import Image, ImageSource
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.media.budget import MediaBudget, MediaLease
from openai_bls.pipeline.media.decoder import Decoder, Encoded
from openai_bls.pipeline.media.errors import ImageError
from openai_bls.pipeline.media.fetch import Fetcher, Resolve, resolved
from openai_bls.pipeline.media.hosts import Hosts

LOW_DETAIL_SIDE = 512
"""Side in pixels of the square that an image of low detail is scaled down to, as at OpenAI."""
MAX_FETCHES_PER_REQUEST = 4
"""Images of one request that are fetched at a time."""

_DATA = "data:"
# Characters before the base64 of a data: URI.
_MAX_HEAD = 256

# A key leaves a thread to others: a disk may be slow.
_UPLOADED = FairExecutor(4, "uploaded-images", leaves_one=lambda: True)

UploadedPath = Callable[[str, str], Path | None]
"""Path of an uploaded image by its file's id and the API key that may see it, None if there is none; takes a while."""


class ImageLoader:
    """Loads images, for one `openai_bls` instance. Belongs to the event loop's thread.

    Args:
        settings: limits, and the hosts that images may be fetched from.
        resolve: finds the addresses of a host.
        several: tells whether there are several API keys.
    """

    def __init__(
        self,
        settings: OpenAiBlsSettings,
        resolve: Resolve = resolved,
        several: Callable[[], bool] = lambda: False,
    ) -> None:
        self._max_bytes = settings.max_image_bytes
        self._max_pixels = settings.max_image_pixels
        self.budget = MediaBudget(settings.max_image_memory_bytes, several)
        """Memory of all images."""
        self.decoder = Decoder(settings.max_image_pixels, settings.max_image_bytes, several=several)
        hosts = Hosts(settings.image_hosts, settings.image_private_hosts)
        self._fetcher = Fetcher(hosts, settings.max_image_bytes, settings.image_timeout_s, resolve)
        self.uploaded: UploadedPath | None = None
        """Finder of uploaded images; None if files are off."""

    def close(self) -> None:
        """End the decoders."""
        self.decoder.close()
        self._fetcher.close()

    async def load(self, sources: tuple[ImageSource, ...], key: str, lease: MediaLease) -> tuple[Image, ...]:
        """The images, in order. Cancelling this ends all that is done for them.

        Args:
            sources: images of one request.
            key: name of the request's API key.
            lease: the request's part of the budget, which the images are taken from.

        Raises:
            InvalidRequestError: one cannot be used; `param` names it.
            OverloadedError: there is no room for them.
        """
        fetching = asyncio.Semaphore(MAX_FETCHES_PER_REQUEST)
        # One after the other, so that requests take turns at the decoders.
        decoding = asyncio.Lock()

        async def one(source: ImageSource) -> Image:
            try:
                async with fetching:
                    encoded = await self._encoded(source, key, lease)
                async with decoding:
                    image = await self.decoder.decode(encoded, lease.take, key)
                if not encoded.is_base64:
                    lease.give_back(len(encoded.data))
                return image
            except ImageError as error:
                raise error.of(source.param) from None

        return tuple(await _all([one(source) for source in sources]))

    async def _encoded(self, source: ImageSource, key: str, lease: MediaLease) -> Encoded:
        """The image before it is decoded.

        Raises:
            ImageError: it cannot be had.
            InvalidRequestError: there are no files.
            OverloadedError: there is no room for it.
        """
        side = LOW_DETAIL_SIDE if source.detail == "low" else 0
        if source.file_id:
            return Encoded(await self._read(source, key, lease), self._max_pixels, side=side)
        if source.url[: len(_DATA)].lower() == _DATA:
            start = self._base64_start(source)
            if source.base64 is not None:
                return Encoded(source.base64, self._max_pixels, side=side, max_bytes=self._max_bytes)
            return Encoded(source.url, self._max_pixels, start, side, self._max_bytes)
        return Encoded(await self._fetcher.fetch(source.url, lease, key), self._max_pixels, side=side)

    def _base64_start(self, source: ImageSource) -> int:
        """Place of the base64 in a data: URI."""
        url = source.url
        comma = url.find(",", 0, _MAX_HEAD)
        if comma < 0 or not url[:comma].lower().endswith(";base64"):
            raise ImageError("invalid_image_url", "is no data: URI with base64 ('data:image/png;base64,...')")
        length = len(url) - comma - 1 if source.base64 is None else len(source.base64)
        # Escaped line ends, and the escapes of + and /, are a sixth of it; the decoder counts what it makes of it.
        if length > (self._max_bytes + 2) // 3 * 5:
            raise ImageError("image_file_too_large", f"has more than {self._max_bytes} bytes (max_image_bytes)")
        return comma + 1

    async def _read(self, source: ImageSource, key: str, lease: MediaLease) -> bytes:
        if self.uploaded is None:
            raise InvalidRequestError(
                f"'{source.param}' names a file, and files are off here: the setting 'batches_dir' of openai_bls names "
                "a folder for them.",
                param=source.param,
                code="image_file_not_found",
            )
        limit = self._max_bytes

        def read(path_of: UploadedPath) -> bytes:
            path = path_of(source.file_id, key)
            if path is None:
                raise ImageError("image_file_not_found", f"names the file '{source.file_id[:60]}', which is not there")
            try:
                with path.open("rb") as file:
                    data = file.read(limit + 1)
            except FileNotFoundError:
                raise ImageError("image_file_not_found", "names a file that has been deleted") from None
            if len(data) > limit:
                raise ImageError("image_file_too_large", f"has more than {limit} bytes (max_image_bytes)")
            lease.take(len(data))
            return data

        return await asyncio.wrap_future(_UPLOADED.submit(key, partial(read, self.uploaded)))


async def _all(work: list[Coroutine[Any, Any, Image]]) -> list[Image]:
    """Results of all, or the first failure, upon which the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
