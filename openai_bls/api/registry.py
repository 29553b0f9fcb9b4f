"""Registry of the API's endpoints: one line per folder."""

from __future__ import annotations

from importlib import import_module

from openai_bls.api.endpoint import Endpoint, TritonEntry

FOLDERS = {
    "chat": "Chat completions and completions",
    "responses": "Responses",
    "responses.conversations": "Conversations",
    "messages": "Messages",
    "decisions": "Decisions",
    "tasks.embeddings": "Embeddings",
    "tasks.rerank": "Rerank and score",
    "tasks.moderations": "Moderations",
    "tasks.classify": "Classify",
    "tasks.transcription": "Transcriptions and translations",
    "tasks.speech": "Speech",
    "tokenize": "Tokenize and detokenize",
    "lora": "Adapters",
    "models": "Models",
    "batches": "Files and batches",
    "triton_paths": "Triton's paths",
    "server": "Server",
}
"""Packages beside this module, each with an `endpoints.py` that has `ENDPOINTS`, and their titles in /openapi.json."""


def _endpoints(folder: str) -> tuple[Endpoint, ...]:
    endpoints: tuple[Endpoint, ...] = import_module(f"openai_bls.api.{folder}.endpoints").ENDPOINTS
    return endpoints


BY_TITLE: dict[str, tuple[Endpoint, ...]] = {title: _endpoints(folder) for folder, title in FOLDERS.items()}
"""Title of a folder → its endpoints."""

ENDPOINTS: tuple[Endpoint, ...] = tuple(endpoint for endpoints in BY_TITLE.values() for endpoint in endpoints)
"""Endpoints, in the order in which paths are matched."""

TRITON_ENTRIES: dict[str, TritonEntry] = {e.name: e.triton for e in ENDPOINTS if e.triton is not None}
"""Value of the input `endpoint` on Triton → what serves it."""

GUARDED = frozenset(e.name for e in ENDPOINTS if e.has_guards)
"""Names of the endpoints whose requests are shown to the guards, if there are any."""
