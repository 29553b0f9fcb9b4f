"""Release of a tritonserver, what its published vulnerabilities mean, and which of its interfaces need a key."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from openai_bls.launcher.tritonserver.command import flag_values, has_flag
from openai_bls.launcher.tritonserver.ports import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXED_RELEASE = (26, 7)
"""NVIDIA's newest security bulletin for Triton that is known here (5875) names this release."""

_RESTRICTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")


def exposure_warning(release: str, host: str) -> str | None:
    """A sentence for the operator if a server with published vulnerabilities listens on more than loopback.

    Args:
        release: release of the NGC container, such as `24.10`; `unknown` counts as an old one.
        host: address of Triton's HTTP and gRPC ports.
    """
    numbers = re.fullmatch(r"(\d+)\.(\d+)", release)
    if is_loopback(host) or (numbers and (int(numbers[1]), int(numbers[2])) >= FIXED_RELEASE):
        return None
    fixed = "{}.{:02}".format(*FIXED_RELEASE)
    return (
        f"WARNING: Triton's own ports are open on {host}, and release {release} of tritonserver has published "
        f"vulnerabilities, fixed in {fixed}: let nobody reach them whom you do not trust, or open /v1 alone with "
        "--triton-host 127.0.0.1 (SECURITY.md)"
    )


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
