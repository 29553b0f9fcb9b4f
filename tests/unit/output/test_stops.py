from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.detokenizer import factory
from openai_bls.output.detokenizer.special_tokens import SpecialTokens
from openai_bls.output.stops import StopStrings, check_reachable
from tests.unit.core_support import EOS, tiny_detokenizers, tiny_tokenizer, token_ids
from tests.unit.output import text_tokenizers

moderate = settings(deadline=None, max_examples=300)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IDS = {text: tiny_tokenizer().get_vocab()[text] for text in SPECIAL}
# Pieces of outputs and of stop strings: special tokens, text, and text that reads like one.
PIECES = st.sampled_from([*SPECIAL, "a", "ab", "<|im_", "end|>", "你"])
pieces = st.lists(PIECES, min_size=1, max_size=5)


def spelled(text: str) -> list[int]:
    """Ids of `text` in ordinary tokens, special tokens too."""
    return [token_id for char in text for token_id in token_ids(char)]


def ids_of(output: list[tuple[str, bool]]) -> list[int]:
    """Ids of an output, of pieces that are special tokens or text that is spelled."""
    return [
        token_id
        for piece, special in output
        for token_id in ([IDS[piece]] if special and piece in IDS else spelled(piece))
    ]


def symbols(output: list[tuple[str, bool]]) -> list[str]:
    """A special token is one symbol, any other character another."""
    return [symbol for piece, special in output for symbol in ([piece] if special and piece in IDS else piece)]


def expected(output: list[tuple[str, bool]], stops: list[list[str]], *, skip: bool) -> tuple[str, str | None]:
    """The definition, read off the whole output: a stop string is found in text, or with its special tokens by id.

    Other special tokens, which no stop string names, are not there at all.
    """
    named = {piece for stop in stops for piece in stop}
    whole = [symbol for symbol in symbols(output) if symbol not in IDS or symbol in named]
    forms = {"".join(stop): [list("".join(stop)), symbols([(piece, True) for piece in stop])] for stop in stops}

    def shown(part: list[str]) -> str:
        return "".join(symbol for symbol in part if not (skip and symbol in IDS))

    for end in range(1, len(whole) + 1):
        both = ((form, name) for name, each in forms.items() for form in each)
        found = {len(form): name for form, name in both if whole[max(0, end - len(form)) : end] == form}
        if found:
            length = max(found)
            return shown(whole[: end - length]), found[length]
    return shown(whole), None


def run(stops: StopStrings, ids: list[int]) -> tuple[str, str | None]:
    detokenizer, matcher = stops.detokenizer([1]), stops.matcher()
    assert matcher is not None
    text = ""
    for token_id in ids:
        emitted, matched = matcher.push(detokenizer.push([token_id]))
        text += emitted
        if matched:
            break
    else:
        emitted, matched = matcher.push(detokenizer.finish())
        text += emitted if matched else emitted + matcher.finish()
    return (text if stops.marks is None else stops.marks.visible(text)), matched


@moderate
@given(
    output=st.lists(st.tuples(PIECES, st.booleans()), max_size=12),
    stops=st.lists(pieces, min_size=1, max_size=3),
    skip=st.booleans(),
)
def test_special_tokens_are_found_by_id(output: list[tuple[str, bool]], stops: list[list[str]], skip: bool) -> None:
    """Whether the text shows them or not; and what only reads like one is found in the text."""
    made = StopStrings(["".join(stop) for stop in stops], tiny_detokenizers(), skip_special_tokens=skip)
    if skip:
        assert run(made, ids_of(output)) == expected(output, [_joined(stop) for stop in stops], skip=skip)
    else:
        # In a text that shows them, one that is spelled is the same as one that is not.
        text, matched = run(made, ids_of(output))
        whole = "".join(piece for piece, _ in output)
        assert whole.startswith(text)
        assert (matched is None) == all("".join(stop) not in whole for stop in stops)


def _joined(stop: list[str]) -> list[str]:
    """A stop string in the pieces that a tokenizer reads it in."""
    return [piece for piece, _ in tiny_detokenizers().special.split("".join(stop))]


@pytest.mark.parametrize(
    "tokenizer",
    [text_tokenizers.byte_level, text_tokenizers.llama2, text_tokenizers.gemma],
    ids=lambda tokenizer: tokenizer.__name__,
)
def test_after_text_that_is_held_back(tokenizer: Callable[[], Tokenizer]) -> None:
    """A character of several byte tokens, of which a detokenizer waits for the end."""
    detokenizers = factory.from_tokenizer(tokenizer())
    (special,) = [text for text in detokenizers.special.ids if text in ("<|im_end|>", "</s>")]
    ids = [*tokenizer().encode("x 👍", add_special_tokens=False).ids, detokenizers.special.ids[special][0]]
    for stop in ("👍" + special, special):
        text, matched = run(StopStrings([stop], detokenizers), [*ids, ids[0]])
        assert matched == stop
        assert text.strip() == ("x" if stop != special else "x 👍")


def test_an_end_token_within_a_stop_string_is_refused() -> None:
    special = tiny_detokenizers().special
    for good in ("<|im_end|>", "a<|im_end|>", "<|im_start|>a", "a", "<|im_end|"):
        check_reachable([good], special, (EOS,), "stop", "x")
    for bad in ("<|im_end|>\n", "a<|im_end|><|im_start|>"):
        check_reachable([bad], special, (), "stop", "x")
        with pytest.raises(InvalidRequestError) as caught:
            check_reachable(["a", bad], special, (EOS,), "stop", "x")
        assert caught.value.param == "stop[1]"


def test_many_special_tokens() -> None:
    """More than there are marks for."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    texts = [f"<{place}>" for place in range(3000)]
    tokenizer.add_special_tokens([AddedToken(text) for text in texts])
    with pytest.raises(InvalidRequestError) as caught:
        StopStrings(["".join(texts)], factory.from_tokenizer(tokenizer), param="stop_words")
    assert caught.value.param == "stop_words"


@given(st.text("<ab>", max_size=30))
def test_splitting_keeps_the_text(text: str) -> None:
    special = SpecialTokens({0: "<a>", 1: "<a><b>", 2: "<", 3: "", 4: "<a>"})
    found = list(special.split(text))
    assert "".join(piece for piece, _ in found) == text
    assert all(piece in special.ids if is_special else "<" not in piece for piece, is_special in found)
    assert special.ids["<a>"] == (0, 4)
