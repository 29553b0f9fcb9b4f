"""Record of a llama.cpp engine in engine.json."""

from __future__ import annotations

from openai_bls.core.manifest import AnswerRecord, EngineRecord


class LlamaCppRecord(EngineRecord, frozen=True, forbid_unknown_fields=True):
    """Build record of an engine of the kind `llama_cpp`."""

    version: str
    """Release of the package with llama.cpp."""
    answers: AnswerRecord | None = None
    """Outcome of the build's self-test; None if the build left it out."""
