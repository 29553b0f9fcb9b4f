"""Grammar constraints by llguidance, for one model's vocabulary.

The vocabulary is read from tokenizer.json: for each id the bytes that it adds to the text. So what a grammar spells is
reachable by any tokens that spell it, added ones such as `<tool_call>` or `</think>` included where the tokenizer does
not call them special. Special ones (`<|im_start|>`) match nothing, unless a Lark grammar spells them (`[TOOL_CALLS]`):
then they are text to it, like the tokens that spell them in parts. Tokens that end a text and ids without a token, with
which models pad their vocabulary, never match.

llguidance knows no stop tokens here. A request's own are set in the bitmask where the grammar may end and cleared
everywhere else, also if they are text.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.grammars.errors import GrammarError, message, require_size
from openai_bls.engines.grammars.matcher import Bitmask, Constraint, ConstraintFactory
from openai_bls.output.detokenizer import factory, tokenizer_json
from openai_bls.output.detokenizer.base import Vocabulary
from openai_bls.output.structured.gbnf import slashed

logger = logging.getLogger(__name__)

# Compiled grammars that are kept. Those of a large vocabulary take megabytes.
_CACHED_GRAMMARS = 32
_MAX_THREADS = 8
# Prefix of tokens that are no text to llguidance.
_SPECIAL = b"\xff"


def load(tokenizer_dir: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> ConstraintFactory | None:
    """The factory for the tokenizer in a folder; reads nothing yet.

    Args:
        tokenizer_dir: folder with tokenizer.json.
        vocab_size: size of the model's vocabulary, which may be larger than the tokenizer's.
        eos_token_ids: ids that are never text, whatever the tokenizer says.

    Returns:
        None if the file or llguidance is missing.
    """
    if not (tokenizer_dir / "tokenizer.json").is_file():
        logger.info("no grammars: there is no %s", tokenizer_dir / "tokenizer.json")
        return None
    if importlib.util.find_spec("llguidance") is None:
        logger.info("no grammars: llguidance is not installed")
        return None
    return LlguidanceFactory(tokenizer_dir, vocab_size, tuple(eos_token_ids))


class _Vocabulary(msgspec.Struct, frozen=True):
    """A model's vocabulary as grammars see it."""

    text: list[bytes]
    """Bytes of each token by its id; empty for what is never text."""
    is_text: Bitmask
    """Tokens that are text in every grammar."""
    markers: dict[str, int]
    """Ids of special tokens by their text, which are text only to grammars that spell them."""


class _TokenizerWrapper:
    """The vocabulary in the form that `llguidance.LLTokenizer` reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: _Vocabulary) -> None:
        # llguidance needs an end token: one id more than the model has.
        self.eos_token_id = len(vocabulary.text)
        self.tokens = [text or _SPECIAL + b"<%d>" % token_id for token_id, text in enumerate(vocabulary.text)]
        self.tokens.append(_SPECIAL + b"<end>")
        self.special_token_ids = [token_id for token_id, text in enumerate(self.tokens) if text[:1] == _SPECIAL]
        self._id_of_byte = {text[0]: token_id for token_id, text in enumerate(self.tokens) if len(text) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        """Some tokens of a text, which llguidance asks for though it forces none."""
        raw = text.encode() if isinstance(text, str) else text
        return [self._id_of_byte[byte] for byte in raw if byte in self._id_of_byte]


class LlguidanceFactory:
    """A `ConstraintFactory` by llguidance."""

    backend: Literal["llguidance"] = "llguidance"

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """See `load`."""
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._loading = threading.Lock()
        self._vocabulary: _Vocabulary | None = None
        self._llguidance: Any = None
        self._tokenizer: Any = None
        self._executor: Any = None
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, Future[Any]] = OrderedDict()

    def warm_up(self) -> None:
        """Load llguidance and the vocabulary."""
        self._load()

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int]) -> Constraint:
        """A constraint at the beginning of `grammar`."""
        vocabulary = self._load()
        compiled = self._compile_once(grammar)
        is_text = vocabulary.is_text
        # Schemas are written to the end of the line. Without backslashes an escaped marker is itself again.
        spelled = re.sub(r"%json .*", "", grammar.text).replace("\\", "") if grammar.kind == "lark" else ""
        markers = [token_id for text, token_id in vocabulary.markers.items() if text in spelled]
        if markers:
            is_text = is_text | _bitmask(markers, self._vocab_size)
        stop = _bitmask(stop_token_ids, self._vocab_size)
        return LlguidanceConstraint(compiled.deep_copy(), is_text, stop, self._tokenizer.greedy_tokenize)

    def fill_bitmasks(self, constraints: Sequence[Constraint]) -> None:
        """Compute the next bitmasks of `constraints` in parallel, on llguidance's own threads."""
        waiting = [one for one in constraints if isinstance(one, LlguidanceConstraint) and one.needs_bitmask]
        if len(waiting) < 2:
            return  # computed where it is asked for
        rows = np.empty((len(waiting), _words(self._vocab_size + 1)), np.int32)
        matchers = [(constraint.matcher, row) for row, constraint in enumerate(waiting)]
        try:
            self._executor.unsafe_compute_mask_ptr(matchers, rows.ctypes.data, rows.shape[1] * 4, len(waiting))
        except Exception:  # then each computes its own, and one that fails ends its request alone
            logger.exception("llguidance does not compute in parallel")
            return
        for constraint, row in zip(waiting, rows, strict=True):
            constraint.take(row)

    def _load(self) -> _Vocabulary:
        with self._loading:
            if self._vocabulary is None:
                import llguidance

                vocabulary = _read_vocabulary(self._folder, self._vocab_size, self._eos_token_ids)
                wrapper: Any = _TokenizerWrapper(vocabulary)
                self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=len(wrapper.tokens))
                self._executor = llguidance.LLExecutor(max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2)))
                self._llguidance = llguidance
                self._vocabulary = vocabulary
            return self._vocabulary

    def _compile_once(self, grammar: Grammar) -> Any:
        """The compiled grammar; compiled once, also if several threads ask for the same at a time."""
        with self._lock:
            known = self._compiled.get(grammar)
            future: Future[Any] = known or Future()
            self._compiled[grammar] = future
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        if known is None:
            try:
                future.set_result(self._compile(grammar))
            except BaseException as error:
                future.set_exception(GrammarError(message(error)))
                if not isinstance(error, Exception):
                    raise
        return future.result()

    def _compile(self, grammar: Grammar) -> Any:
        require_size(grammar.text)
        match grammar.kind:
            case "json_schema":
                text = f"start: %json {grammar.text}"
            case "regex":
                text = f"start: {slashed(grammar.text)}"
            case "lark":
                text = grammar.text
            case _:
                raise GrammarError(f"llguidance has no {grammar.kind} grammars")
        # Without this, llguidance allows but its own choice of token where only one text fits.
        lark = '%llguidance {"no_forcing": true}\n' + text
        new = self._llguidance.LLMatcher
        matcher = new(self._tokenizer, new.grammar_from_lark(lark), log_level=0)
        if matcher.is_error():
            raise GrammarError(message(matcher.get_error()))
        return matcher


class LlguidanceConstraint:
    """A `Constraint`: the next bitmask is computed once, by whoever asks first or by `fill_bitmasks`."""

    def __init__(
        self, matcher: Any, is_text: Bitmask, stop: Bitmask, spell: Callable[[str], list[int]] = lambda _: []
    ) -> None:
        """Start where `matcher` is.

        Args:
            matcher: an `LLMatcher`.
            is_text: tokens that are text to its grammar.
            stop: stop tokens of the request.
            spell: the longest tokens that spell a text.
        """
        self.matcher = matcher
        self._spell = spell
        self._text = is_text & ~stop
        self._stop = stop
        self._next: Bitmask | None = None
        self._error: GrammarError | None = None
        self._may_end = False
        self._only_end = False

    def fill(self, mask: Bitmask) -> None:
        """Write the tokens that may come next.

        Raises:
            GrammarError: none may, though the grammar is not complete, or it exceeds llguidance's limits.
        """
        mask[:] = self._computed()
        if self._may_end:
            mask |= self._stop
        elif self._only_end:
            raise GrammarError("no token of this model's vocabulary fits where the grammar has got to")

    def accept(self, token_id: int) -> bool:
        """Advance by a sampled token."""
        if not 0 <= token_id < self._text.size * 32 or not self._text[token_id // 32] >> token_id % 32 & 1:
            return False
        allowed, self._next = self._next, None
        if self.matcher.consume_token(token_id):
            return True
        if allowed is not None and allowed[token_id // 32] >> token_id % 32 & 1:
            # It would have fitted: the matcher has met a limit on its way there.
            self._error = self._beyond_limits()
            raise self._error
        return False

    def look_ahead(self, token_ids: Sequence[int]) -> list[Bitmask]:
        """Bitmasks after each of `token_ids`, as far as they are allowed and something may follow them."""
        masks: list[Bitmask] = []
        try:
            ahead = LlguidanceConstraint(self.matcher.deep_copy(), self._text, self._stop)
            valid = self.matcher.validate_tokens(list(token_ids))
            for token_id in token_ids[:valid]:
                if not ahead.accept(token_id) or ahead.ended:
                    break
                mask = np.empty_like(self._text)
                ahead.fill(mask)
                masks.append(mask)
        except Exception as error:  # comes again, where it counts, if the token is sampled
            logger.debug("a draft leads to where the grammar fails: %s", error)
        return masks

    def forced(self) -> list[int]:
        """Tokens of the only text that may follow."""
        try:
            return self._spell(self.matcher.compute_ff_bytes().decode(errors="ignore"))
        except Exception as error:  # comes again, where it counts
            logger.debug("a grammar forces nothing: %s", error)
            return []

    @property
    def ended(self) -> bool:
        """True once the grammar is complete and only a stop token may follow; raises as `fill` does."""
        self._computed()
        return self._may_end and self._only_end

    @property
    def needs_bitmask(self) -> bool:
        """True while the next bitmask is not computed."""
        return self._next is None and self._error is None

    def take(self, row: Bitmask) -> None:
        """Note the next bitmask as llguidance has computed it; keeps `row`."""
        matcher = self.matcher
        if matcher.is_error():
            self._error = self._beyond_limits()
            return
        # llguidance's vocabulary is larger by its end token, which may take one word more.
        allowed = row[: self._text.size]
        if matcher.is_stopped():
            allowed[:] = 0
        else:
            allowed &= self._text
        self._next = allowed
        self._may_end = bool(matcher.is_accepting())
        self._only_end = not allowed.any()

    def _beyond_limits(self) -> GrammarError:
        return GrammarError(f"the grammar is beyond llguidance's limits: {message(self.matcher.get_error())}")

    def _computed(self) -> Bitmask:
        if self.needs_bitmask:
            self.take(np.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=np.int32))
        if self._error is not None:
            raise self._error
        assert self._next is not None
        return self._next


def _read_vocabulary(folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> _Vocabulary:
    content = (folder / "tokenizer.json").read_bytes()
    plain = tokenizer_json.read(content)
    if plain is not None:
        vocabulary = plain[0]
    else:
        from tokenizers import Tokenizer

        vocabulary = Vocabulary.of(Tokenizer.from_buffer(content))
    bytes_of = factory.load(folder).token_bytes
    text = [b""] * vocab_size
    for token_id in vocabulary.tokens:
        if token_id < vocab_size and token_id not in eos_token_ids:
            text[token_id] = bytes_of(token_id)
    is_text = (token_id for token_id, raw in enumerate(text) if raw and token_id not in vocabulary.special_ids)
    markers = {
        vocabulary.tokens[token_id]: token_id
        for token_id in vocabulary.special_ids
        if token_id < vocab_size and text[token_id]
    }
    return _Vocabulary(text, _bitmask(is_text, vocab_size), markers)


def _words(vocab_size: int) -> int:
    return -(-vocab_size // 32)


def _bitmask(token_ids: Iterable[int], vocab_size: int) -> Bitmask:
    """The bitmask of these ids; those outside the vocabulary are left out."""
    bits = np.zeros(_words(vocab_size) * 32, dtype=np.uint8)
    bits[[token_id for token_id in token_ids if 0 <= token_id < vocab_size]] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
