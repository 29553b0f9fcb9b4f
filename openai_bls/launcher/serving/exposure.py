"""Reach of a server: API keys keep Triton's ports on loopback, and `serve` says what is open to whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from openai_bls.core.settings import OpenAiBlsSettings, SettingsError, load
from openai_bls.launcher.checks import OPENAI_MODEL
from openai_bls.launcher.tritonserver.ports import LOOPBACK, is_loopback
from openai_bls.triton_models.repository.engine_paths import foreign_model
from openai_bls.triton_models.repository.engines import (
    ENGINE,
    PREPROCESSING,
    has_keys,
    openai_bls_settings,
    prompt_transport,
)
from openai_bls.triton_models.tensors.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from openai_bls.launcher.serving.options import ServeOptions


def settings_of(repository: Path, environ: Mapping[str, str]) -> OpenAiBlsSettings | None:
    """Settings of `openai_bls`, those of the environment alone where there is no repository yet; None if they are bad,
    of which the server itself says what is wrong."""
    try:
        if (repository / OPENAI_MODEL / "config.pbtxt").is_file():
            return openai_bls_settings(repository / OPENAI_MODEL, environ)
        return load(OpenAiBlsSettings, {}, environ)
    except (OSError, ValueError, SettingsError):
        return None


def closed(options: ServeOptions, environ: Mapping[str, str]) -> ServeOptions:
    """`options`, with Triton's HTTP and gRPC on loopback where there are keys and nobody says where these ports are.

    Models of others, and engines of Triton's C++ backend, ask for no key. The metrics stay where /v1 is, whose /metrics
    needs no key either.
    """
    settings = settings_of(options.repository, environ)
    asks = settings is not None and has_keys(settings) and settings.triton_requires_key
    if not asks or options.triton_host or is_loopback(options.host):
        return options
    return replace(options, triton_host=LOOPBACK, metrics_host=options.host)


def sentence(options: ServeOptions, environ: Mapping[str, str], names: Sequence[str], keyless: Sequence[str]) -> str:
    """One line on what is open to whom.

    Args:
        options: options of the server.
        environ: environment variables of the server.
        names: models of the repository.
        keyless: models that ask for no API key, whatever the settings.
    """
    settings = settings_of(options.repository, environ) or OpenAiBlsSettings()
    keys = has_keys(settings)
    parts = []
    if OPENAI_MODEL in names and options.ports.openai:
        known = ["a key"] if keys else []
        known += ["a client certificate"] if settings.ssl_ca_certs else []
        parts.append(f"/v1 to {_reach(options.host, ' and '.join(known))}")
    asks = keys and settings.triton_requires_key
    triton = f"Triton's HTTP and gRPC to {_reach(options.triton_address, 'a key' if asks else '')}"
    if asks and keyless:
        triton += f" ({', '.join(keyless)} without one)"
    parts += [triton, f"metrics to {_reach(options.metrics_address, '')}"]
    text = f"open: {'; '.join(parts)}"
    open_to_all = not is_loopback(options.host) and not keys and not settings.ssl_ca_certs
    if open_to_all and OPENAI_MODEL in names and options.ports.openai:
        return f"WARNING: {text}. No key is set: OPENAI_BLS_API_KEY or --api-key closes it"
    return text


def without_keys(repository: Path, names: Sequence[str]) -> list[str]:
    """Models of `names` that ask for no key: those that are not ours, and engines of Triton's C++ backend."""
    return [name for name in names if not _asks_for_a_key(repository / name)]


def _asks_for_a_key(model: Path) -> bool:
    own = next((own for own in MODELS if model.name == own or model.name.startswith(f"{own}_")), None)
    if own is None or not (model / "config.pbtxt").is_file():
        return False
    if own == PREPROCESSING:
        return prompt_transport(model) == "exchange"
    return own != ENGINE or foreign_model(model) is None


def _reach(host: str, needed: str) -> str:
    who = "this machine" if is_loopback(host) else f"whoever reaches {host}"
    return f"{who} with {needed}" if needed else f"{who}, without a key"
