"""Engine paths in config.pbtxt of the C++ backend, compared with the engine in the repository.

The backend takes absolute paths from config.pbtxt. A repository that was copied or moved keeps those of its old place,
and would load an engine that is gone, or another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.core import config_pbtxt
from openai_bls.core.manifest import ENGINE_FOLDER
from openai_bls.triton_models.repository.cpp_backend import CPP_BACKEND, GRAMMAR_VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION = "1"


def cpp_parameters(model: Path) -> dict[str, str] | None:
    """The parameters in the config.pbtxt of the folder `model`, or None if the C++ backend does not run it."""
    try:
        config = config_pbtxt.read(model / "config.pbtxt")
    except (OSError, ValueError):
        # Triton says so itself when it loads the model.
        return None
    return config_pbtxt.parameters(config) if config_pbtxt.text(config, "backend") == CPP_BACKEND else None


def strayed(model: Path, parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters that name a path elsewhere although the model has its own: name → the absolute path of its own.

    Args:
        model: the folder of a model that the C++ backend runs.
        parameters: parameters of the model's config.pbtxt.
    """
    engine = model.absolute() / _VERSION / ENGINE_FOLDER
    own = {"gpt_model_path": engine, "xgrammar_tokenizer_info_path": engine / GRAMMAR_VOCABULARY}
    return {
        name: str(path)
        for name, path in own.items()
        # By a link it is the same place.
        if parameters.get(name) and path.exists() and Path(parameters[name]).resolve() != path.resolve()
    }
