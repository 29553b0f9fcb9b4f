"""What stands in for a model: random tokens among those that a constraint allows."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import EngineInfo, Grammar
from openai_bls.engines.grammars import llguidance_backend
from openai_bls.engines.grammars.matcher import Constraint, ConstraintFactory
from openai_bls.output.detokenizer.factory import load
from openai_bls.output.structured import Format, grammar
from tests.unit import core_support

DEMO = Path(__file__).resolve().parents[4] / "demo" / "checkpoint"
EMBEDDED = core_support.engine_info(grammar_backend="llguidance")


def trtllm(version: str, backend: str, *kinds: str) -> EngineInfo:
    return core_support.engine_info(
        engine="tensorrt_llm",
        grammar_dialect="guided_decoding",
        version=f"tensorrt_llm {version}",
        grammar_backend=backend,
        grammar_kinds=kinds,
    )


XGRAMMAR = trtllm("1.2.1", "xgrammar", "json_schema", "regex", "ebnf", "structural_tag")
# So many tokens in, a text had better come to its end.
_LONG = 12
_CLOSING = {b'"', b"}", b"]", b'"}', b'"]', b'",', b", ", b"0", b")", b">"}


class Vocabulary:
    """A tokenizer, its grammars, and what its tokens spell."""

    def __init__(self, folder: Path, vocab_size: int, eos: int) -> None:
        factory = llguidance_backend.load(folder, vocab_size, [eos], trials=False)
        assert factory is not None
        self.factory: ConstraintFactory = factory
        self.size = vocab_size
        self.eos = eos
        text = load(folder)
        self.bytes_of = [text.token_bytes(token_id) for token_id in range(vocab_size)]
        self.id_of_byte = {raw[0]: token_id for token_id, raw in enumerate(self.bytes_of) if len(raw) == 1}
        self.closing = np.array([raw in _CLOSING for raw in self.bytes_of])
        self.readable = np.array([b" " <= raw <= b"~" for raw in self.bytes_of])

    def make(self, wanted: Grammar, stop_token_ids: Sequence[int] | None = None) -> Constraint:
        return self.factory.make(wanted, [self.eos] if stop_token_ids is None else stop_token_ids)

    def allowed(self, constraint: Constraint) -> npt.NDArray[np.intp]:
        """The ids that a constraint allows."""
        mask = np.zeros(-(-self.size // 32), dtype=np.int32)
        constraint.fill(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        assert not bits[self.size :].any()
        return np.flatnonzero(bits)


@cache
def tiny() -> Vocabulary:
    """A token a byte, in a model whose vocabulary is larger."""
    folder = core_support.write_tokenizer(Path(tempfile.mkdtemp()))
    return Vocabulary(folder, core_support.VOCAB_SIZE + 7, core_support.EOS)


@cache
def demo() -> Vocabulary:
    """The demo checkpoint's, with tokens of many bytes."""
    config = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))
    names = json.loads((DEMO / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    eos = next(token["id"] for token in names if token["content"] == "<|im_end|>")
    return Vocabulary(DEMO, config["vocab_size"], eos)


def drive(vocabulary: Vocabulary, wanted: Grammar, random: Random, limit: int = 300) -> bytes | None:
    """A random output that is complete by the constraint's own account; None if none came in `limit` tokens."""
    constraint = vocabulary.make(wanted)
    output: list[bytes] = []
    while not constraint.ended:
        if len(output) == limit:
            return None
        ids = vocabulary.allowed(constraint)
        ends = vocabulary.eos in ids
        if ends and (len(output) > _LONG or random.random() < 0.4):
            break
        ids = ids[ids != vocabulary.eos]
        closing = ids[vocabulary.closing[ids]]
        if len(output) > _LONG and closing.size and random.random() < 0.8:
            ids = closing
        token_id = int(ids[random.randrange(ids.size)])
        assert constraint.accept(token_id)
        output.append(vocabulary.bytes_of[token_id])
    return b"".join(output)


def spelled(text: str) -> list[int]:
    """A text's ids in the tiny vocabulary."""
    return [tiny().id_of_byte[byte] for byte in text.encode()]


def accepts(wanted: Grammar, text: str) -> bool:
    """Whether a grammar allows a whole text."""
    vocabulary = tiny()
    constraint = vocabulary.make(wanted)
    if not all(map(constraint.accept, spelled(text))):
        return False
    return constraint.ended or vocabulary.eos in vocabulary.allowed(constraint)


def made(wanted: Format) -> Grammar:
    """For the embedded engine."""
    return grammar(wanted, EMBEDDED, param="response_format")


def json_schema(schema: object) -> Format:
    return {"type": "json_schema", "json_schema": schema}
