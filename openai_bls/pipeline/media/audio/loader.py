"""Loader of audio: the samples of an uploaded file, within the limits of the settings."""

from __future__ import annotations

from collections.abc import Callable

from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.media.audio.decoder import AudioDecoder
from openai_bls.pipeline.media.budget import MediaBudget, MediaLease
from openai_bls.pipeline.media.errors import AudioError


class AudioLoader:
    """Loads audio, for one `openai_bls` instance. Belongs to the event loop's thread.

    Args:
        settings: limits.
        several: tells whether there are several API keys.
    """

    def __init__(self, settings: OpenAiBlsSettings, several: Callable[[], bool] = lambda: False) -> None:
        self._max_bytes = settings.max_audio_bytes
        self.budget = MediaBudget(
            settings.max_audio_memory_bytes, several, what="much audio", setting="max_audio_memory_bytes"
        )
        """Memory of all audio."""
        self.decoder = AudioDecoder(settings.max_audio_seconds, settings.max_audio_bytes, several=several)

    def close(self) -> None:
        """End the decoders."""
        self.decoder.close()

    async def load(self, data: bytes, rate: int, key: str, lease: MediaLease, param: str = "file") -> bytes:
        """Mono samples of a file, as 32-bit floats, at least one. Cancelling this ends what is done for it.

        Args:
            data: the file as it came.
            rate: samples per second to make.
            key: name of the request's API key.
            lease: the request's part of the budget, which the samples are taken from.
            param: name of the request's field.

        Raises:
            InvalidRequestError: it cannot be used; `param` names it.
            OverloadedError: there is no room for it.
        """
        try:
            if len(data) > self._max_bytes:
                raise AudioError("audio_file_too_large", f"has more than {self._max_bytes} bytes (max_audio_bytes)")
            return await self.decoder.decode(data, rate, lease.take, key)
        except AudioError as error:
            raise error.of(param) from None
