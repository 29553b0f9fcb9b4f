"""Models of foreign backends: their parameters, and those that name an engine in another place."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from openai_bls.core import config_pbtxt
from openai_bls.triton_models.repository.foreign_backend import ForeignBackend, foreign_backends


class ForeignModel(NamedTuple):
    """Model that a foreign backend runs."""

    backend: ForeignBackend
    parameters: dict[str, str]
    """Parameters of its config.pbtxt."""

    def strayed(self, model: Path) -> dict[str, str]:
        """Parameters that name a path elsewhere although the model in the folder `model` has its own."""
        return self.backend.own_paths(model, self.parameters)


def foreign_model(model: Path) -> ForeignModel | None:
    """Engine that a foreign backend runs in the folder `model`; None if none does."""
    try:
        config = config_pbtxt.read(model / "config.pbtxt")
    except (OSError, ValueError):
        # Triton says so itself when it loads the model.
        return None
    backend = foreign_backends().get(config_pbtxt.text(config, "backend"))
    return None if backend is None else ForeignModel(backend, config_pbtxt.parameters(config))
