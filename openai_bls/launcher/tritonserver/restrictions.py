"""Interfaces of tritonserver that need a key: shared memory and model control."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from openai_bls.launcher.tritonserver.command import flag_values, has_flag

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESTRICTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")


def closed_shared_memory(extra: Sequence[str]) -> list[str]:
    """Flags that close the registration of shared memory on HTTP and gRPC, which none of our models needs.

    Args:
        extra: flags of the user, whose own restriction of it counts.
    """
    return _closed("shared-memory", "openai-bls-closed", extra)


def model_control(extra: Sequence[str]) -> list[str]:
    """Flags that let models be loaded and unloaded by whoever has the key on the server's command line.

    Args:
        extra: flags of the user, whose own model control and restriction of it count.
    """
    if has_flag(extra, "--model-control-mode") or has_flag(extra, "--load-model"):
        return []
    closed = _closed("model-repository", "openai-bls-control", extra)
    return ["--model-control-mode=explicit", "--load-model=*", *closed]


def _closed(interface: str, key: str, extra: Sequence[str]) -> list[str]:
    return [
        f"{flag}={interface}:{key}={secrets.token_urlsafe(24)}"
        for flag in _RESTRICTIONS
        if not any(interface in value.partition(":")[0].split(",") for value in flag_values(extra, flag))
    ]
