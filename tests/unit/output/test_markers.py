from __future__ import annotations

import pytest

from openai_bls.output.markers import Markers


@pytest.mark.parametrize(
    ("text", "certain"),
    [("", 0), ("abc", 3), ("abc<", 3), ("a<b", 1), ("a<bc", 1), ("a<c", 3), ("<<b", 1), ("<b <", 3), ("<b x", 4)],
)
def test_holds_what_may_begin_a_marker(text: str, certain: int) -> None:
    assert Markers("<a>", "<bc>").certain(text, 0) == certain
    assert Markers("<a>", "<bc>").certain("<a" + text, 2) == certain + 2


@pytest.mark.parametrize("markers", [("<a>", "[b]"), ("<a<",)])
def test_markers_of_another_form_are_refused(markers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="same character"):
        Markers(*markers)
