"""Grammars for an engine's vocabulary: `Grammar`s compiled by xgrammar or llguidance.

Both libraries get the same vocabulary, read from tokenizer.json: for each id the bytes that it adds to the text. So
what a grammar spells is reachable by any tokens that spell it, added ones such as `<tool_call>` or `</think>` included
where the tokenizer does not call them special. Those that it does (`<|im_start|>`) match nothing, unless a structural
tag or a Lark grammar spells them (`[TOOL_CALLS]`): then they are text to it, like the tokens that spell them in parts.
Tokens that end a text and ids without a token, with which models pad their vocabulary, never match.

The libraries know no stop tokens here. A request's own are set in the mask where the grammar may end and cleared
everywhere else, also if they are text.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import Grammar
from openai_bls.engines.embedded.grammar_matcher import Constraint, ConstraintFactory, GrammarError
from openai_bls.output.detokenizer import factory, tokenizer_json
from openai_bls.output.detokenizer.base import Vocabulary
from openai_bls.output.structured.gbnf import slashed

_log = logging.getLogger(__name__)

# Compiled grammars that are kept, of either library. Those of a large vocabulary take megabytes.
_KEPT = 32
# Its tokens marked so are no text to llguidance.
_SPECIAL = b"\xff"
_MAX_MESSAGE = 300
# Of a grammar as its library compiles it. At the worst the time grows with the square of it: here to seconds.
_MAX_CHARACTERS = 1 << 18

Words = npt.NDArray[np.int32]
"""A bit for each token id, 32 to a word."""


def load(tokenizer_dir: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> ConstraintFactory | None:
    """A factory for the tokenizer in a folder; what is slow about it is put off until a grammar comes.

    Args:
        tokenizer_dir: holds the tokenizer.json.
        vocab_size: the model's, which may be larger than the tokenizer's.
        eos_token_ids: never text, whatever the tokenizer says.

    Returns:
        None if the file or both libraries are missing.
    """
    if not (tokenizer_dir / "tokenizer.json").is_file():
        _log.info("no grammars: there is no %s", tokenizer_dir / "tokenizer.json")
        return None
    backends = tuple(name for name in _BACKENDS if importlib.util.find_spec(name) is not None)
    if not backends:
        _log.info("no grammars: llguidance is not installed")
        return None
    return _Factory(tokenizer_dir, vocab_size, tuple(eos_token_ids), backends)


class _Tokens(msgspec.Struct, frozen=True):
    """A vocabulary as both libraries are told of it."""

    text: list[bytes]
    """By id; empty for what is never text."""
    is_text: Words
    """What is text anywhere."""
    markers: dict[str, int]
    """Special tokens, which are text only to grammars that spell them."""


class _Backend(ABC):
    """One library, with the vocabulary loaded into it."""

    @abstractmethod
    def compile(self, grammar: Grammar) -> Any:
        """What `start` takes, any number of times. Raises anything."""

    @abstractmethod
    def start(self, compiled: Any, is_text: Words, stop: Words) -> Constraint:
        """A constraint at the beginning of a compiled grammar."""


class _Factory:
    """A `ConstraintFactory`."""

    def __init__(
        self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...], backends: tuple[str, ...]
    ) -> None:
        self.backends: tuple[Any, ...] = backends
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._loading = threading.Lock()
        self._tokens: _Tokens | None = None
        self._loaded: dict[str, _Backend] = {}
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, Future[Any]] = OrderedDict()

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int]) -> Constraint:
        """A constraint at the beginning of `grammar`."""
        backend, tokens = self._backend("llguidance")
        compiled = self._compile(backend, grammar)
        stop = _words(stop_token_ids, self._vocab_size)
        spelled = _spelled(grammar) if tokens.markers else ""
        markers = [token_id for text, token_id in tokens.markers.items() if text in spelled]
        is_text = tokens.is_text | _words(markers, self._vocab_size) if markers else tokens.is_text
        try:
            return backend.start(compiled, is_text, stop)
        except Exception as error:
            raise GrammarError(_message(error)) from None

    def _backend(self, name: str) -> tuple[_Backend, _Tokens]:
        with self._loading:
            if self._tokens is None:
                self._tokens = _read_tokens(self._folder, self._vocab_size, self._eos_token_ids)
            if name not in self._loaded:
                self._loaded[name] = _BACKENDS[name](self._tokens)
            return self._loaded[name], self._tokens

    def _compile(self, backend: _Backend, grammar: Grammar) -> Any:
        """Compile once, also if several threads ask for the same at a time."""
        with self._lock:
            known = self._compiled.get(grammar)
            future: Future[Any] = known or Future()
            self._compiled[grammar] = future
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        if known is None:
            try:
                _bounded(grammar.text)
                future.set_result(backend.compile(grammar))
            except BaseException as error:
                future.set_exception(GrammarError(_message(error)))
                if not isinstance(error, Exception):
                    raise
        return future.result()


class _Masked(ABC):
    """A `Constraint` over a library's matcher: the next mask is computed once, whoever asks."""

    def __init__(self, is_text: Words, stop: Words) -> None:
        self._text = is_text & ~stop
        self._stop = stop
        self._next = np.zeros_like(is_text)
        self._known = False
        self._may_end = False

    def fill(self, mask: Words) -> None:
        """Write which tokens may come next.

        Raises:
            GrammarError: none can, though the grammar is not complete, or it is beyond the library's limits.
        """
        self._look()
        mask[:] = self._next
        if self._may_end:
            mask |= self._stop
        elif not self._next.any():
            raise GrammarError("the grammar has come to where no token of this model's vocabulary fits")

    def accept(self, token_id: int) -> bool:
        """Go on with a sampled token."""
        if not 0 <= token_id < self._text.size * 32 or not self._text[token_id // 32] >> token_id % 32 & 1:
            return False
        self._known = False
        return self._accept(token_id)

    @property
    def ended(self) -> bool:
        """Whether the grammar is complete and nothing but a stop token may follow; raises what `fill` raises."""
        self._look()
        return self._may_end and not self._next.any()

    def _look(self) -> None:
        if not self._known:
            self._may_end = self._compute(self._next)
            self._next &= self._text
            self._known = True

    @abstractmethod
    def _accept(self, token_id: int) -> bool: ...

    @abstractmethod
    def _compute(self, mask: Words) -> bool:
        """Write the library's mask; returns whether the grammar may end here.

        Raises:
            GrammarError: the grammar is beyond the library's limits.
        """


class _LlguidanceTokens:
    """The vocabulary in llguidance's form."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: _Tokens) -> None:
        # It wants one token to end with: one that no model has.
        self.eos_token_id = len(tokens.text)
        self.tokens = [text or _SPECIAL + b"<%d>" % token_id for token_id, text in enumerate(tokens.text)]
        self.tokens.append(_SPECIAL + b"<end>")
        self.special_token_ids = [token_id for token_id, text in enumerate(self.tokens) if text[:1] == _SPECIAL]
        self._id_of_byte = {text[0]: token_id for token_id, text in enumerate(self.tokens) if len(text) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        """Some tokens of a text, which llguidance asks for though it forces none."""
        raw = text.encode() if isinstance(text, str) else text
        return [self._id_of_byte[byte] for byte in raw if byte in self._id_of_byte]


class _Llguidance(_Backend):
    def __init__(self, tokens: _Tokens) -> None:
        import llguidance

        self._llguidance = llguidance
        wrapper: Any = _LlguidanceTokens(tokens)
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=len(wrapper.tokens))

    def compile(self, grammar: Grammar) -> Any:
        new = self._llguidance.LLMatcher
        match grammar.kind:
            case "json_schema":
                text = f"start: %json {grammar.text}"
            case "regex":
                text = f"start: {slashed(grammar.text)}"
            case "lark":
                text = grammar.text
            case _:
                raise GrammarError(f"llguidance has no {grammar.kind} grammars")
        # Where only one text fits, it would allow but the one token that it had chosen itself.
        lark = '%llguidance {"no_forcing": true}\n' + text
        matcher = new(self._tokenizer, new.grammar_from_lark(lark), log_level=0)
        if matcher.is_error():
            raise GrammarError(_message(matcher.get_error()))
        return matcher

    def start(self, compiled: Any, is_text: Words, stop: Words) -> Constraint:
        return _LlguidanceConstraint(compiled.deep_copy(), is_text, stop)


class _LlguidanceConstraint(_Masked):
    def __init__(self, matcher: Any, is_text: Words, stop: Words) -> None:
        super().__init__(is_text, stop)
        self._matcher = matcher

    def _accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))

    def _compute(self, mask: Words) -> bool:
        if self._matcher.is_stopped() and not self._matcher.is_error():
            mask.fill(0)
            return bool(self._matcher.is_accepting())
        raw = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(f"the grammar is beyond llguidance's limits: {_message(self._matcher.get_error())}")
        # Its vocabulary is larger by one token, which may need one word more.
        mask[:] = np.frombuffer(raw, dtype=np.int32)[: mask.size]
        return bool(self._matcher.is_accepting())


def _read_tokens(folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> _Tokens:
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
    return _Tokens(text, _words(is_text, vocab_size), markers)


def _spelled(grammar: Grammar) -> str:
    """What the constant parts of a grammar spell, of the kinds that have any."""
    if grammar.kind == "lark":
        # Schemas are written to the end of the line. Without backslashes an escaped marker is itself again.
        return re.sub(r"%json .*", "", grammar.text).replace("\\", "")
    return ""


def _words(token_ids: Iterable[int], vocab_size: int) -> Words:
    """The words with these ids' bits set; ids outside the vocabulary have none."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[[token_id for token_id in token_ids if 0 <= token_id < vocab_size]] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def _bounded(text: str) -> str:
    """`text`, unless it is too long to be compiled in a time that others can wait for."""
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(
            f"the grammar is too large: its rules take {len(text)} characters, {_MAX_CHARACTERS} at most"
        )
    return text


def _message(error: object) -> str:
    """A library's message for a client's eyes: one line, without the library's own places and state."""
    text = " ".join(_DUMP.split(str(error), 1)[0].split())
    text = _PLACE.sub("", text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


_DUMP = re.compile("<backtrace>|<state>")
# As in `[12:00:00] /project/cpp/regex_converter.cc:75: `.
_PLACE = re.compile(r"(\[[\d:]+\] *)?\S+\.(cc|h|rs):\d+(:\d+)?:? *")

_BACKENDS: dict[str, type[Any]] = {"llguidance": _Llguidance}
