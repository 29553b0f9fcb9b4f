from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openai_bls_transformers.attention_spec import layer_windows, other_feature, refuse_features


@pytest.mark.parametrize(
    ("arguments", "feature"),
    [
        ({}, None),
        ({"softcap": None, "output_attentions": False, "scaling": 0.5}, None),
        ({"softcap": 50.0}, "softcap"),
        ({"output_attentions": True}, "output_attentions"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
    ],
)
def test_other_features(arguments: dict[str, Any], feature: str | None) -> None:
    """A tensor asks for one, whatever its numbers are."""
    assert other_feature(arguments) == feature
    if feature is None:
        refuse_features(arguments, "no {}")
    else:
        with pytest.raises(NotImplementedError, match=f"^no {feature}$"):
            refuse_features(arguments, "no {}")


def test_features_that_are_known() -> None:
    refuse_features({"softcap": 50.0}, "no {}", ["softcap"])
    with pytest.raises(NotImplementedError, match=r"^no s_aux$"):
        refuse_features({"softcap": 50.0, "s_aux": torch.zeros(4)}, "no {}", ["softcap"])


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({}, [0, 0]),
        ({"sliding_window": None}, [0, 0]),
        ({"sliding_window": 8}, [8, 8]),
        ({"sliding_window": 8, "layer_types": [SLIDING, FULL]}, [8, 0]),
        ({"sliding_window": 8, "layer_types": [FULL, FULL]}, [0, 0]),
        ({"sliding_window": None, "layer_types": None}, [0, 0]),
    ],
)
def test_windows_of_layers(fields: dict[str, Any], windows: list[int]) -> None:
    assert layer_windows(SimpleNamespace(num_hidden_layers=2, **fields)) == windows


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layer_types": [SLIDING, FULL]}, "window of None"),
        ({"layer_types": [SLIDING, FULL], "sliding_window": [8, 9]}, r"window of \[8, 9\]"),
        ({"layer_types": ["conv", FULL], "sliding_window": 8}, "type conv"),
    ],
)
def test_windows_that_are_told_otherwise(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        layer_windows(SimpleNamespace(num_hidden_layers=2, **fields))
