"""Registry of the API's endpoints: one line per folder."""

from __future__ import annotations

from importlib import import_module

from openai_bls.api.endpoint import Endpoint, TritonEntry

FOLDERS = (
    "chat",
    "responses",
    "messages",
    "embeddings",
    "rerank",
    "moderations",
    "tokenize",
    "lora",
    "models",
    "batches",
    "server",
)
"""Folders beside this module, each with an `endpoints.py` that has `ENDPOINTS`."""


def _endpoints(folder: str) -> tuple[Endpoint, ...]:
    endpoints: tuple[Endpoint, ...] = import_module(f"openai_bls.api.{folder}.endpoints").ENDPOINTS
    return endpoints


BY_FOLDER: dict[str, tuple[Endpoint, ...]] = {folder: _endpoints(folder) for folder in FOLDERS}
"""Folder → its endpoints."""

ENDPOINTS: tuple[Endpoint, ...] = tuple(endpoint for endpoints in BY_FOLDER.values() for endpoint in endpoints)
"""Endpoints, in the order in which paths are matched."""

TRITON_ENTRIES: dict[str, TritonEntry] = {e.name: e.triton for e in ENDPOINTS if e.triton is not None}
"""Value of the input `endpoint` on Triton → what serves it."""

GUARDED = frozenset(e.name for e in ENDPOINTS if e.has_guards)
"""Names of the endpoints whose requests are shown to the guards, if there are any."""
