"""Tokens from the cache are those of the whole text, with tokenizers of every family."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from openai_bls.triton_models.preprocessing.encoding import CACHED_CHARS, Encode, best_encoding, safe_border
from openai_bls.triton_models.preprocessing.rendering import template_texts
from openai_bls.triton_models.preprocessing.token_cache import TokenCache
from tests.unit.output.text_tokenizers import CORPUS
from tests.unit.triton_models.preprocessing.tokenizer_families import NAMES, added_contents, tokenizer

Messages = list[tuple[str, str]]

# What joins with, or changes, what is next to it; and the beginnings and ends of tokens.
_PIECES = (
    *(*CORPUS, " ", "  ", "\n", "\n\n", "\t ", "\u00a0", "\u3000", "\u0301", "e\u0301", "\u1100\u1161", "ﬁ", "İ", "▁"),
    *("'s", " 12", "3456", "</", "<|", "|>", "<|im_", "_end|>", "<s", "s>", "[INS", "T]", "<unk>", "<0x0A>", "\0", "ſ"),
)


@cache
def whole(name: str) -> Encode:
    made = tokenizer(name)
    return best_encoding(made, template_texts(made), 0)


@cache
def border(name: str) -> re.Pattern[str]:
    made = tokenizer(name)
    found = safe_border(made, whole(name), template_texts(made))
    assert found is not None
    return found


def render(name: str, messages: Messages) -> str:
    chat = [{"role": role, "content": content} for role, content in messages]
    text: str = tokenizer(name).apply_chat_template(chat, tokenize=False)
    return text


def contents(name: str) -> st.SearchStrategy[str]:
    pieces = st.sampled_from([*_PIECES, *added_contents(tokenizer(name))])
    return st.lists(pieces | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=8).map("".join)


@st.composite
def conversations(draw: st.DrawFn, name: str) -> list[Messages]:
    """Turns of a conversation that grows, and is edited or cut in between."""
    message = st.tuples(st.sampled_from(["user", "assistant"]), contents(name))
    turns: list[Messages] = [draw(st.lists(message, min_size=1, max_size=3))]
    for _ in range(draw(st.integers(1, 5))):
        turn = list(turns[-1])
        change = draw(st.sampled_from(["grow", "grow", "edit", "drop", "continue"]))
        at = draw(st.integers(0, len(turn) - 1))
        if change == "edit":
            turn[at] = draw(message)
        elif change == "drop" and len(turn) > 1:
            del turn[at]
        elif change == "continue":
            turn[-1] = (turn[-1][0], turn[-1][1] + draw(contents(name)))
        else:
            turn += draw(st.lists(message, min_size=1, max_size=2))
        turns.append(turn)
    return turns


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_turns_of_a_conversation_have_the_tokens_of_the_whole_text(name: str, data: st.DataObject) -> None:
    encode = whole(name)
    tokens = TokenCache(
        lambda text: encode(text, False),
        border(name),
        max_bytes=data.draw(st.sampled_from([0, 2000, 1 << 20])),
        part_chars=data.draw(st.sampled_from([1, 20, 200])),
    )
    for turn in data.draw(conversations(name)):
        text = render(name, turn)
        assert tokens.encode(text) == encode(text, False)
        # Raw text too, which no template has put in order.
        raw = "".join(content for _, content in turn)
        assert tokens.encode(raw) == encode(raw, False)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data(), special=st.booleans())
def test_texts_are_encoded_as_transformers_does(name: str, data: st.DataObject, special: bool) -> None:
    text = data.draw(contents(name))
    assert whole(name)(text, special) == tokenizer(name)(text, add_special_tokens=special)["input_ids"]


def test_a_tokenizer_with_a_way_of_its_own_is_asked_itself() -> None:
    made = tokenizer("qwen2")

    class Shouting(type(made)):  # type: ignore[misc]
        def __call__(self, text: str, **options: Any) -> Any:
            return super().__call__(text.upper(), **options)

    shouting = Shouting(tokenizer_object=made.backend_tokenizer, eos_token="<|im_end|>")
    text = "<|im_end|>\n<|im_start|>user\nab" * 1000
    assert best_encoding(shouting, [], 1 << 20)(text, False) == whole("qwen2")(text.upper(), False)


@pytest.mark.parametrize("name", NAMES)
def test_long_texts_with_and_without_the_tokenizers_own_special_tokens(name: str) -> None:
    made = tokenizer(name)
    cached = best_encoding(made, template_texts(made), 1 << 20)
    turns: Messages = []
    for at in range(40):
        turns += [("user", f"{at} {CORPUS[at % 5]}" * 5), ("assistant", CORPUS[at % 4] * (at % 9))]
        text = render(name, turns)
        for special in (False, True):
            assert cached(text, special) == whole(name)(text, special)
    assert len(text) > 2 * CACHED_CHARS


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_costs_its_new_messages(name: str) -> None:
    encode, tokenized = whole(name), []

    def counted(text: str) -> list[int]:
        tokenized.append(len(text))
        return encode(text, False)

    tokens = TokenCache(counted, border(name), 1 << 20, part_chars=100)
    turns: Messages = [("user", "The lazy dog. " * 30), ("assistant", "It jumps. " * 20)] * 3
    tokens.encode(render(name, turns))
    tokenized.clear()
    turns += [("user", "Why? ")]
    tokens.encode(render(name, turns))
    # The answer before is new too, since what follows it has come now.
    assert sum(tokenized) < 500 < len(render(name, turns)) / 3


def test_threads_share_a_cache() -> None:
    made = tokenizer("qwen2")
    # Too small for all, so that threads drop what others look up.
    cached = best_encoding(made, template_texts(made), 40_000)
    texts = [render("qwen2", [("user", f"{at % 5} {CORPUS[at % 3]}" * 60)] * (2 + at % 4)) for at in range(60)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: cached(text, False), texts))
    assert found == [whole("qwen2")(text, False) for text in texts]


def changed(name: str, *added: AddedToken, dropout: float | None = None, **options: Any) -> Any:
    """A copy of a family's tokenizer with further added tokens, and with other options."""
    made = tokenizer(name)
    backend = type(made.backend_tokenizer).from_str(made.backend_tokenizer.to_str())
    backend.model.dropout = dropout
    backend.add_special_tokens(list(added))
    template = made.chat_template
    return type(made)(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template, **options)


def marks(*tokens: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(token, normalized=False, **flags) for token in tokens]


@pytest.mark.parametrize(
    ("added", "options"),
    [
        ([], {"dropout": 0.5}),
        ([], {"split_special_tokens": True}),
        (marks("word", single_word=True), {}),
        (marks("<s>", "</s>", lstrip=True), {}),
        # One ends as a border begins, another contains one.
        (marks("x<"), {}),
        (marks("<s></s>", "</s>."), {}),
    ],
)
def test_tokenizers_whose_texts_are_not_cut(added: list[AddedToken], options: dict[str, Any]) -> None:
    made = changed("metaspace always", *added, **options)
    made("")
    assert safe_border(made, lambda text, special: [], template_texts(made)) is None


def test_tokens_that_differ_in_the_self_check_are_no_borders() -> None:
    made, encode = tokenizer("qwen2"), whole("qwen2")

    def position_matters(text: str, add_special_tokens: bool) -> list[int]:
        return [*encode(text, add_special_tokens), len(text)]

    assert safe_border(made, position_matters, template_texts(made)) is None
