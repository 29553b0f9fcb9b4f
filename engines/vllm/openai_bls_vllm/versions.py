"""Versions of vLLM that the engine runs with."""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from openai_bls.core.manifest import EngineLoadError

logger = logging.getLogger(__name__)


class Version(NamedTuple):
    """Version of vLLM, compared by its first two numbers."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Version:
        """Version of a text such as `0.32.0` or `0.26.0rc1+cpu`.

        Raises:
            ValueError: it does not begin with two numbers.
        """
        match = re.match(r"(\d+)\.(\d+)", text)
        if match is None:
            raise ValueError(text)
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST = Version(0, 24)
"""The vLLM of Triton's image 26.07."""
NEWEST = Version(0, 33)
"""The newest whose engine core client was read; `auto` takes it up to this one."""
KV_CACHE_BYTES_ON_CPU = Version(0, 32)
"""First whose CPU worker takes its KV cache's size from `kv_cache_memory_bytes`; before, an environment variable."""


def require_version(text: str) -> Version:
    """The version of a text, if the engine runs with it; a newer one than was tried is only warned of.

    Raises:
        EngineLoadError: it is older than `OLDEST`, or no version.
    """
    try:
        version = Version.parse(text)
    except ValueError:
        raise EngineLoadError(f"vLLM calls its version {text!r}: install a release, {OLDEST} to {NEWEST}") from None
    if version < OLDEST:
        raise EngineLoadError(f"vLLM {text} is too old: install a release from {OLDEST} to {NEWEST}")
    if version > NEWEST:
        logger.warning(
            "vLLM %s is newer than the releases that were tried, %s to %s: its public AsyncLLM is used, which makes "
            "some 10 %% fewer tokens/s at 64 streams (vllm_client=core_client takes the other client)",
            text,
            OLDEST,
            NEWEST,
        )
    return version
