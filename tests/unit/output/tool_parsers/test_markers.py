"""Formats whose markers grammars name by their tokens' ids: the same texts as when they are spelled."""

from __future__ import annotations

import itertools
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from openai_bls.core.engine_types import EngineInfo, Grammar
from openai_bls.output.detect import REASONINGS, TOOL_FORMATS
from openai_bls.output.structured import Format, grammar
from tests.unit import core_support
from tests.unit.output.structured.driving import Vocabulary, accepts, json_schema, made, spelled
from tests.unit.output.tool_parsers.test_constraints import LIKELY, TOOLS, VALUE_ENDS, walk

MARKERS = sorted(
    {marker for form in TOOL_FORMATS.values() for marker in form.special} | {"</think>", "<think>", "[/THINK]"}
)
FORMATS = {
    **{
        f"{name}-{'forced' if forced else 'free'}": form.constraint(
            TOOLS, at_least_one=forced, name=None, parallel=True
        )
        for name, form in TOOL_FORMATS.items()
        for forced in (True, False)
    },
    **{
        f"thoughts-{name}": reasoning.constraint(json_schema({"type": "integer"}), opened=True)
        for name, reasoning in REASONINGS.items()
    },
}


@cache
def vocabulary() -> Vocabulary:
    """A token a byte, and one for each marker."""
    folder = Path(tempfile.mkdtemp())
    # A copy: the tiny tokenizer is shared by all tests of a process.
    tokenizer = Tokenizer.from_str(core_support.tiny_tokenizer().to_str())
    tokenizer.add_tokens(MARKERS)
    tokenizer.save(str(folder / "tokenizer.json"))
    return Vocabulary(folder, tokenizer.get_vocab_size(), core_support.EOS)


@cache
def info() -> EngineInfo:
    found = vocabulary()
    return core_support.engine_info(
        engine="vllm",
        grammar_dialect="guidance",
        grammar_backend="llguidance",
        grammar_kinds=("json_schema", "regex", "lark"),
        marker_token_ids={marker: found.bytes_of.index(marker.encode()) for marker in MARKERS},
    )


def by_id(wanted: Format) -> Grammar:
    return grammar(wanted, info(), param="x")


def tokens(text: str) -> list[int]:
    """A text's tokens, its markers being one each."""
    found: list[int] = []
    markers = "|".join(map(re.escape, sorted(MARKERS, key=len, reverse=True)))
    for part in re.split(f"({markers})", text):
        raw = part.encode()
        found += (
            [vocabulary().bytes_of.index(raw)] if part in MARKERS else [vocabulary().id_of_byte[byte] for byte in raw]
        )
    return found


def likely(name: str) -> list[str]:
    """What a walk at random would hardly ever come upon."""
    form = TOOL_FORMATS.get(name.rpartition("-")[0])
    own = [] if form is None else [form.trigger, form.open, form.end, form.close, *VALUE_ENDS.get(form.style, ())]
    return [*LIKELY, *filter(None, own), *(reasoning.end for reasoning in REASONINGS.values())]


@pytest.mark.parametrize("name", FORMATS)
def test_what_comes_by_ids_is_what_may_be_spelled(name: str) -> None:
    wanted = FORMATS[name]
    plain, marked = made(wanted), by_id(wanted)
    parts = [tokens(part) for part in likely(name)]
    walks = (walk(marked, parts, seed, vocabulary()) for seed in range(12))
    ended = list(itertools.islice((text for text in walks if text is not None), 5))
    assert len(ended) >= 2
    for text in ended:
        assert accepts(plain, text), text


# A marker of theirs is a part of several tags, and text, spelled, may have it before any other.
SHARED = ("deepseek_v32", "deepseek_v4", "kimi_k3", "minimax_m3", "gigachat3-free")


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith(SHARED)])
def test_what_may_be_spelled_may_come_by_ids(name: str) -> None:
    wanted: dict[str, Any] = FORMATS[name]
    texts = [walk(made(wanted), [spelled(part) for part in likely(name)], seed) for seed in range(4)]
    marked = by_id(wanted)
    for text in filter(None, texts):
        if "\ufffd" in text:
            continue
        constraint = vocabulary().make(marked)
        for at, token_id in enumerate(tokens(text)):
            assert constraint.accept(token_id), (text, at)
        assert constraint.ended or vocabulary().eos in vocabulary().allowed(constraint)


def test_markers_are_written_by_id_and_nothing_else_changes() -> None:
    ids = info().marker_token_ids
    hermes = by_id(FORMATS["hermes-forced"]).text
    assert f"<[{ids['<tool_call>']}]>" in hermes
    assert f"<[{ids['</tool_call>']}]>" in hermes
    assert "tool_call" not in hermes.replace("/<tool_call>", "")
    for unmarked in (json_schema({"enum": ["<tool_call>"]}), {"type": "regex", "pattern": "<tool_call>"}):
        assert by_id(unmarked) == made(unmarked)
