"""Stop strings of a request on a tokenizer: special tokens in them are found by their ids.

A text has no special tokens where these are left out of it, and one that the model spells in other tokens is not one.
So a special token that a stop string holds stands in the text that is searched as a mark: a lone surrogate, which no
decoded text can have. What is passed on has no marks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.detokenizer.base import Detokenizer, DetokenizerFactory
from openai_bls.output.detokenizer.special_tokens import SpecialTokens
from openai_bls.output.stop_strings import StopMatcher

_FIRST_MARK, _MARKS = 0xD800, 0x800


class Marks:
    """Marks of the special tokens in a request's stop strings.

    Args:
        of_texts: text of a token → its mark.
        special: special tokens of the tokenizer.
    """

    def __init__(self, of_texts: Mapping[str, str], special: SpecialTokens) -> None:
        self._special = special
        self._of_ids = {token_id: mark for text, mark in of_texts.items() for token_id in special.ids[text]}
        self._none = str.maketrans("", "", "".join(of_texts.values()))

    def of(self, token_id: int | None) -> str:
        """The mark of a token; empty if it has none."""
        return "" if token_id is None else self._of_ids.get(token_id, "")

    def is_token(self, stop: str | None, token_id: int | None) -> bool:
        """True if the stop string is this token and nothing else."""
        return token_id is not None and self._special.text_of.get(token_id) == stop

    def visible(self, text: str) -> str:
        """`text` without marks."""
        return text.translate(self._none)


class _MarkingDetokenizer(Detokenizer):
    """Detokenizer with marks in the place of special tokens that the text has not.

    Args:
        inner: detokenizer that shows special tokens.
        marks: marks of tokens.
        detokenizers: factory of `inner`.
        hidden: special tokens that are left out.
    """

    __slots__ = ("_detokenizers", "_hidden", "_inner", "_marks")

    def __init__(
        self, inner: Detokenizer, marks: Marks, detokenizers: DetokenizerFactory, hidden: frozenset[int]
    ) -> None:
        self._inner = inner
        self._marks = marks
        self._detokenizers = detokenizers
        self._hidden = hidden

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; the text with marks that no later id can change."""
        return "".join(map(self._push, token_ids))

    def finish(self) -> str:
        """The text still held."""
        return self._inner.finish()

    def _push(self, token_id: int) -> str:
        if token_id not in self._hidden:
            return self._inner.push([token_id])
        mark = self._marks.of(token_id)
        if not mark:
            return ""
        # A special token ends what was held before it, and is whole text itself.
        return self._inner.push([token_id]).removesuffix(self._detokenizers.decode([token_id])) + mark


class StopStrings:
    """Stop strings of one request.

    Args:
        stops: the stop strings, none empty; there may be none.
        detokenizers: detokenizers of the model.
        include_stop_str_in_output: whether a stop string that is found stays at the end of the text.
        skip_special_tokens: whether special tokens are left out of the text.
        keep_special: texts of special tokens that stay in it all the same.
        param: field that they come from.

    Raises:
        InvalidRequestError: they hold too many special tokens.
    """

    def __init__(
        self,
        stops: Sequence[str],
        detokenizers: DetokenizerFactory,
        *,
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        keep_special: frozenset[str] = frozenset(),
        param: str = "stop",
    ) -> None:
        self._detokenizers = detokenizers
        self._include = include_stop_str_in_output
        self._skip, self._keep = skip_special_tokens, keep_special
        self._param = param
        self._patterns = {stop: stop for stop in stops}
        """What is looked for → the stop string that it is of."""
        self._marks: dict[str, str] = {}
        for stop in stops:
            for pattern in self._marked(stop):
                self._patterns.setdefault(pattern, stop)
        self.marks = Marks(self._marks, detokenizers.special) if self._marks else None
        """Marks of the special tokens in them; None if there are none."""

    def matcher(self) -> StopMatcher | None:
        """A matcher for the text of one sequence; None without stop strings."""
        return StopMatcher(tuple(self._patterns), self._include, self._patterns) if self._patterns else None

    def detokenizer(self, prompt_token_ids: Sequence[int]) -> Detokenizer:
        """A detokenizer for one sequence, whose text has the marks."""
        if self.marks is None or not self._skip:
            return self._detokenizers.new(self._skip, prompt_token_ids, keep_special=self._keep)
        texts = self._detokenizers.special.text_of
        hidden = frozenset(token_id for token_id, text in texts.items() if text not in self._keep)
        inner = self._detokenizers.new(skip_special_tokens=False, prompt_token_ids=prompt_token_ids)
        return _MarkingDetokenizer(inner, self.marks, self._detokenizers, hidden)

    def _marked(self, stop: str) -> Iterator[str]:
        """Forms of a stop string with marks: for the special tokens that the text has not, and for a last one that it
        has, since that may be the end token, which is never delivered."""
        pieces = list(self._detokenizers.special.split(stop))
        if not any(is_special for _, is_special in pieces):
            return
        found = [
            self._mark(piece) if is_special and self._skip and piece not in self._keep else piece
            for piece, is_special in pieces
        ]
        yield "".join(found)
        last, is_special = pieces[-1]
        if is_special and found[-1] == last:
            yield "".join([*found[:-1], self._mark(last)])

    def _mark(self, text: str) -> str:
        if text not in self._marks and len(self._marks) == _MARKS:
            raise InvalidRequestError(
                f"'{self._param}' holds more than {_MARKS} different special tokens.", param=self._param
            )
        return self._marks.setdefault(text, chr(_FIRST_MARK + len(self._marks)))


def check_reachable(
    stops: Sequence[str], special: SpecialTokens, stop_token_ids: Collection[int], param: str, remedy: str
) -> None:
    """Refuse a stop string that no output can hold: the output ends at an end token, and nothing follows it.

    Args:
        stops: the stop strings.
        special: special tokens of the model.
        stop_token_ids: tokens that end the output.
        param: field that they come from.
        remedy: what makes such a token one like any other.

    Raises:
        InvalidRequestError: one goes on after such a token.
    """
    for at, stop in enumerate(stops):
        *before, _ = special.split(stop)
        for piece, is_special in before:
            if is_special and all(token_id in stop_token_ids for token_id in special.ids[piece]):
                place = param if len(stops) == 1 else f"{param}[{at}]"
                raise InvalidRequestError(
                    f"'{place}' goes on after {piece!r}, where the answer ends, so it can never match: leave off what "
                    f"follows, or give {remedy}.",
                    param=place,
                )
