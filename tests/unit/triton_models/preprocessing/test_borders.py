from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from openai_bls.triton_models.preprocessing.borders import border_pattern, parts


def token(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, normalized=flags.pop("normalized", False), **flags)


def borders(tokens: list[AddedToken], wanted: str | None = None) -> list[str]:
    text = " ".join(added.content for added in tokens) if wanted is None else wanted
    found = border_pattern(tokens, text)
    return [added.content for added in tokens if found is not None and found.fullmatch(added.content)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([token("<a>"), token("<b>")], ["<a>", "<b>"]),
        ([token("<a>", rstrip=True)], ["<a>"]),
        ([token("<a>", lstrip=True), token("<b>")], ["<b>"]),
        ([token("<a>", normalized=True), token("<b>")], ["<b>"]),
        # Found or not by the characters around it, and with it what overlaps it.
        ([token("<a>", single_word=True), token("<b>")], []),
        ([token("\n"), token(" <a>"), token("<b>")], ["<b>"]),
        # One holds the other, at its beginning, inside or at its end.
        ([token("<a>"), token("<a><b>")], ["<a><b>"]),
        ([token("<a>"), token("x<a>y")], ["x<a>y"]),
        ([token("<a>"), token("x<a>")], ["x<a>"]),
        # One ends as another begins, or as it begins itself.
        ([token("ab"), token("xa")], ["xa"]),
        ([token("aba")], []),
        ([token("aab"), token("a")], ["aab"]),
        ([], []),
    ],
)
def test_tokens_that_are_found_wherever_they_are_spelled(tokens: list[AddedToken], expected: list[str]) -> None:
    assert borders(tokens) == expected


def test_only_tokens_of_use_are_looked_for() -> None:
    reserved = [token(f"<{at}>") for at in range(1000)]
    assert borders(reserved, "{{ '<7>' }} <12>") == ["<7>", "<12>"]
    assert borders(reserved, "") == []


@given(
    contents=st.lists(st.text("ab<> ", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    strips=st.lists(st.sampled_from(["", "lstrip", "rstrip"]), min_size=5, max_size=5),
    text=st.text("ab<> ", max_size=40),
    least=st.integers(1, 6),
)
def test_the_tokenizers_library_finds_in_parts_what_it_finds_in_the_whole(
    contents: list[str], strips: list[str], text: str, least: int
) -> None:
    """With tokens that overlap each other in all ways."""
    tokens = [token(content, **({flag: True} if flag else {})) for content, flag in zip(contents, strips, strict=False)]
    made = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate("ab<>Ġ")}, merges=[]))
    # Another encoding of what is at a piece's edge.
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    made.add_tokens(tokens)
    border = border_pattern(tokens, " ".join(contents))
    if border is not None:
        cut = list(parts(text, border, least))
        assert [token_id for part in cut for token_id in made.encode(part).ids] == made.encode(text).ids
        assert "".join(cut) == text


@given(
    messages=st.lists(st.text("xy", max_size=9), max_size=9),
    more=st.lists(st.text("xy", max_size=9), max_size=9),
    least=st.integers(1, 30),
)
def test_texts_that_begin_alike_have_the_same_parts(messages: list[str], more: list[str], least: int) -> None:
    border = re.compile("<>")
    text = "<>".join(messages)
    cut, longer = list(parts(text, border, least)), list(parts("<>".join([text, *more]), border, least))
    assert "".join(cut) == text
    assert longer[: len(cut) - 1] == cut[:-1]
    assert all(len(part) >= least for part in cut[:-1])
