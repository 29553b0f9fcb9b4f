from __future__ import annotations

from typing import Any

import pytest
import torch

from openai_bls.embedded.attention_spec import other_feature, refuse_features


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
