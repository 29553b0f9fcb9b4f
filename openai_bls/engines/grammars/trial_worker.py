"""Trial process: compiles grammars within a budget, so that the engine compiles none that is beyond it.

    python -I -S trial_worker.py <folder with llguidance>

Run by path, with nothing of openai_bls imported. The vocabulary comes first (`VOCABULARY` and what it announces), then
jobs: `J`, `JOB` and a grammar in llguidance's Lark. Each is compiled, and its first bitmask computed, in a child of
this process, which `C` ends before its time. The answer to a job is a kind and `ANSWER`, then as many bytes:

====  ================================================================================
`S`   it compiles; the bytes that it takes in memory, as text
`E`   it does not compile; llguidance's message
`L`   it meets llguidance's limits at its first token; the message
`T`   it takes more CPU time than `CPU_S`
`M`   the child has died otherwise: the memory of `MEMORY_BYTES`, or the stack, ran out
`G`   it was ended by `C`
====  ================================================================================
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

VOCABULARY = struct.Struct("<QQ")
"""Number of tokens, whose lengths come as so many `<u4`, and bytes of their texts, which come behind them."""
JOB = struct.Struct("<Q")
"""Bytes of the grammar."""
ANSWER = struct.Struct("<Q")
"""Bytes that follow."""
CPU_S = 2.0
"""Seconds of CPU time that a grammar may take until its first bitmask is computed."""
MEMORY_BYTES = 64 * 1024 * 1024
"""Bytes that a grammar may add to the address space meanwhile."""
MAX_LEXER_STATES = 50_000
"""States of the lexer of a compiled grammar, which all its requests share, of half a kilobyte each."""

SPECIAL = b"\xff"
"""Prefix of tokens that are no text to llguidance."""
_MAX_ERROR_CHARACTERS = 2_000
_SMALL = "start: /[a-z]+/"


class TokenizerWrapper:
    """A vocabulary in the form that `llguidance.LLTokenizer` reads.

    Args:
        tokens: bytes of each token of the model by its id; those that are no text begin with `SPECIAL`.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes]) -> None:
        # llguidance needs an end token: one id more than the model has.
        self.eos_token_id = len(tokens)
        self.tokens = [*tokens, SPECIAL + b"<end>"]
        self.special_token_ids = [token_id for token_id, text in enumerate(self.tokens) if text[:1] == SPECIAL]
        self._id_of_byte = {text[0]: token_id for token_id, text in enumerate(self.tokens) if len(text) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        """Some tokens of a text, which llguidance asks for though it forces none."""
        raw = text.encode() if isinstance(text, str) else text
        return [self._id_of_byte[byte] for byte in raw if byte in self._id_of_byte]


def tokenizer(llguidance: Any, tokens: Sequence[bytes]) -> Any:
    """An `LLTokenizer` of a vocabulary; see `TokenizerWrapper`."""
    wrapper = TokenizerWrapper(tokens)
    return llguidance.LLTokenizer(wrapper, n_vocab=len(wrapper.tokens))


def compiled(llguidance: Any, vocabulary: Any, lark: str) -> Any:
    """An `LLMatcher` at the beginning of a grammar, or in its state of error."""
    new = llguidance.LLMatcher
    limits = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES)
    return new(vocabulary, new.grammar_from_lark(lark), log_level=0, limits=limits)


def _read(size: int) -> bytes:
    """`size` bytes of the input, unbuffered; ends the process where there are no more."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(0, min(size - len(data), 1 << 20))
        if not piece:
            os._exit(0)
        data += piece
    return bytes(data)


def _write(target: int, kind: bytes, data: bytes = b"") -> None:
    left = memoryview(kind + ANSWER.pack(len(data)) + data)
    while left:
        left = left[os.write(target, left) :]


def _pages() -> tuple[int, int]:
    """Pages of the address space, and of it what is in memory and of no file."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib takes a while to import
        size, resident, shared = map(int, file.read().split()[:3])
    return size, resident - shared


def _try(llguidance: Any, vocabulary: Any, lark: str, target: int) -> NoReturn:
    """Compile a grammar within the budget, in a child of this process, which ends with it."""
    size, before = _pages()
    page = resource.getpagesize()
    address_space = size * page + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    matcher = compiled(llguidance, vocabulary, lark)
    kind = b"E"
    if not matcher.is_error():
        matcher.compute_bitmask()
        kind = b"L"
    if matcher.is_error():
        _write(target, kind, matcher.get_error()[:_MAX_ERROR_CHARACTERS].encode())
    else:
        _write(target, b"S", b"%d" % (max(0, _pages()[1] - before) * page))
    os._exit(0)


def _job(llguidance: Any, vocabulary: Any, lark: str) -> None:
    source, target = os.pipe()
    child = os.fork()
    if not child:
        try:
            _try(llguidance, vocabulary, lark, target)
        finally:
            os._exit(1)
    os.close(target)
    answer = b""
    given_up = False
    while True:
        ready, _, _ = select.select([source] if given_up else [source, 0], [], [])
        if 0 in ready:
            # `C`, or the end of the input.
            given_up = True
            os.kill(child, signal.SIGKILL)
            _read(1)
        if source in ready:
            piece = os.read(source, 1 << 16)
            if not piece:
                break
            answer += piece
    os.close(source)
    _, status = os.waitpid(child, 0)
    if not status:
        kind, data = answer[:1], answer[1 + ANSWER.size :]
        _write(1, kind, data)
    elif given_up:
        _write(1, b"G")
    else:
        _write(1, b"T" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF else b"M")


def main(folder: str) -> None:
    """Do jobs until the input ends."""
    sys.path.append(folder)
    import llguidance

    count, size = VOCABULARY.unpack(_read(VOCABULARY.size))
    lengths = struct.unpack(f"<{count}I", _read(4 * count))
    texts = _read(size)
    tokens = []
    at = 0
    for length in lengths:
        tokens.append(texts[at : at + length])
        at += length
    vocabulary = tokenizer(llguidance, tokens)
    del tokens, texts, lengths
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # What every grammar uses is in memory before the first one is measured, and the children leave it shared.
    compiled(llguidance, vocabulary, _SMALL).compute_bitmask()
    gc.freeze()
    while True:
        kind = _read(1)
        # An order to end a job that had just ended is passed over.
        if kind == b"J":
            _job(llguidance, vocabulary, _read(*JOB.unpack(_read(JOB.size))).decode())


if __name__ == "__main__":
    main(sys.argv[1])
