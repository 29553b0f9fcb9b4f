from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_bls.pipeline.generation.collector import GrowingText


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans())))
def test_a_text_is_its_pieces_however_they_are_joined(steps: list[tuple[str, bool]]) -> None:
    text, size, joined = GrowingText(), 0, 0
    for piece, joins in steps:
        if added := text.add(piece):
            size += added
            joined += 1
        if joins:
            size += text.join()
            joined += 1
            assert not text.pieces
            # The characters have one to four bytes, and a string as many as an object has.
            assert len(text.whole) <= size <= 4 * len(text.whole) + 80 * joined
    assert text.whole == "".join(piece for piece, _ in steps)
