"""Headers that Triton forwards to its models: those that hold an API key, where the models ask for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai_bls.core.settings import SettingsError
from openai_bls.launcher.checks import OPENAI_MODEL
from openai_bls.launcher.server import has_flag
from openai_bls.triton_models.repository import openai_bls_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FLAGS = ("--http-header-forward-pattern", "--grpc-header-forward-pattern")


def forwarded_keys(repository: Path, extra: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Flags that have `authorization` forwarded as a request parameter, if `openai_bls` asks for a key.

    Args:
        repository: the model repository.
        extra: flags of the user, whose own pattern counts.
        environ: the server's.
    """
    try:
        settings = openai_bls_settings(repository / OPENAI_MODEL, environ)
    except (OSError, ValueError, SettingsError):
        # The server itself says what is wrong with it.
        return []
    if not (settings.triton_requires_key and (settings.api_key or settings.api_keys_file)):
        return []
    return [f"{flag}=(?i)authorization" for flag in _FLAGS if not has_flag(extra, flag)]
