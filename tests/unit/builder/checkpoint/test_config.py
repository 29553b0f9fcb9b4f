"""Config.json files as transformers writes them: no class of its own refuses what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from openai_bls.builder.checkpoint.config import require_config
from openai_bls.core.manifest import BuildError

FOLDER = Path("checkpoint")


@pytest.mark.parametrize(
    "model_type", ["mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "nemotron_h_omni"]
)
def test_numbers_that_json_lacks(model_type: str) -> None:
    written = CONFIG_MAPPING[model_type]().to_json_string()
    assert "__float__" in written
    config = json.loads(written)
    require_config(FOLDER, config)
    assert config == json.loads(written)


@pytest.mark.parametrize("limit", [[0.0, "Infinity"], [0.0, {"__float__": "many"}], {"__float__": "Infinity"}, 1])
def test_limits_that_are_none(limit: Any) -> None:
    config = {**json.loads(CONFIG_MAPPING["mamba2"]().to_json_string()), "time_step_limit": limit}
    with pytest.raises(BuildError):
        require_config(FOLDER, config)
