"""Headers that Triton forwards to its models: with a timeout, an API key where the models ask for one, and a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai_bls.core.request import TIMEOUT_HEADER
from openai_bls.core.settings import SettingsError
from openai_bls.launcher.checks import OPENAI_MODEL
from openai_bls.launcher.tritonserver.command import has_flag
from openai_bls.triton_models.endpoint.request_keys import TRACE_PARAMETERS
from openai_bls.triton_models.repository.engines import has_keys, openai_bls_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FLAGS = ("--http-header-forward-pattern", "--grpc-header-forward-pattern")


def forwarded_headers(repository: Path, extra: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Flags that have headers forwarded as request parameters: `x-request-timeout`, `authorization` if `openai_bls`
    asks for a key, those of W3C if it makes traces.

    Args:
        repository: the model repository.
        extra: flags of the user, whose own pattern counts.
        environ: environment variables of the server.
    """
    try:
        settings = openai_bls_settings(repository / OPENAI_MODEL, environ)
    except (OSError, ValueError, SettingsError):
        # The server itself says what is wrong with it.
        return []
    names = [TIMEOUT_HEADER]
    if settings.triton_requires_key and has_keys(settings):
        names.append("authorization")
    if settings.tracing:
        names += sorted(TRACE_PARAMETERS)
    pattern = "|".join(names)
    return [f"{flag}=(?i)({pattern})" for flag in _FLAGS if not has_flag(extra, flag)]
