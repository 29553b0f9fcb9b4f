"""Config.json files as transformers writes them: no class of its own refuses what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from openai_bls.builder.checkpoint.config import require_config
from openai_bls.core.manifest import BuildError


@pytest.mark.parametrize(
    "model_type", ["mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "nemotron_h_omni"]
)
def test_numbers_that_json_lacks(model_type: str, tmp_path: Path) -> None:
    written = CONFIG_MAPPING[model_type]().to_json_string()
    assert "__float__" in written
    config = json.loads(written)
    (tmp_path / "config.json").write_text(written, encoding="utf-8")
    require_config(tmp_path, config)
    assert config == json.loads(written)


@pytest.mark.parametrize("limit", [[0.0, "Infinity"], [0.0, {"__float__": "many"}], {"__float__": "Infinity"}, 1])
def test_limits_that_are_none(limit: Any, tmp_path: Path) -> None:
    config = {**json.loads(CONFIG_MAPPING["mamba2"]().to_json_string()), "time_step_limit": limit}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(BuildError):
        require_config(tmp_path, config)
