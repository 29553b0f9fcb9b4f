"""Settings of an engine that is built, given to `render` and written by hand; for the tests of engines too."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.core.settings import SettingsError
from openai_bls.triton_models.repository.render_configs import configure


def config(repository: Path, model: str) -> Path:
    """The config.pbtxt of a model."""
    return repository / model / "config.pbtxt"


def check_setting(repository: Path, change: str, refusal: str = "") -> None:
    """Check that the engine in `repository` takes a setting, or is refused with it until it is taken out.

    Args:
        repository: model repository with an engine.
        change: `NAME=VALUE` of the model `tensorrt_llm`.
        refusal: part of the sentence; empty for a setting that is taken.
    """
    path = config(repository, "tensorrt_llm")
    if not refusal:
        assert configure(repository, [f"tensorrt_llm.{change}"]) == [path]
        return
    with pytest.raises(SettingsError, match=f"tensorrt_llm: .*{refusal}"):
        configure(repository, [f"tensorrt_llm.{change}"])
    # Written by hand, it is told of as well.
    name, _, value = change.partition("=")
    path.write_text(f'{path.read_text()}parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n')
    with pytest.raises(SettingsError, match=refusal):
        configure(repository)
    assert configure(repository, [f"tensorrt_llm.{name}="]) == [path]
