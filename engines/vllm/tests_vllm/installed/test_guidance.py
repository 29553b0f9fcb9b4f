"""Bitmasks of the real vLLM's guidance backend, held against the embedded engine's; starts no engine.

vLLM's backend walks at random through each grammar, with its own llguidance; the embedded matcher follows the tokens,
with that of this environment. Masks must be equal, but for added tokens: vLLM takes them for no text, so they may be
missing from its masks, unless the grammar names them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.output.detect import REASONINGS, TOOL_FORMATS
from openai_bls.output.structured import Format, grammar
from openai_bls_vllm.grammars.grammar_progress import marker_token_ids
from tests.unit import core_support
from tests.unit.output.structured.driving import DEMO, demo, json_schema
from tests.unit.output.structured.schemas import Schema, schemas
from tests.unit.output.tool_parsers.test_constraints import TOOLS
from tests_vllm.vllm_python import output_of

ENDOFTEXT = 0
MARKERS = marker_token_ids(DEMO, (demo().eos,))
INFO = core_support.engine_info(
    engine="vllm",
    grammar_dialect="guidance",
    grammar_backend="llguidance",
    grammar_kinds=("json_schema", "regex", "lark"),
    marker_token_ids=MARKERS,
)
WRONG = (Grammar("regex", "("), Grammar("json_schema", '{"not": {}}'), Grammar("lark", "start: other"))

EXPRESSIONS = (
    *("a", "ab?", r"\d{3}-\w+", "(foo|bar)+", "[^a]{2,5}", r"[\w.]+@[\w.]+\.com", "a/b", '"[^"]*"', "Größe[ßb]?"),
    *(r"(?i:yes|no)", "x{0,40}", r"\s*\S", "[à-ü]{1,3}", r"[^\n]*\n", "日本(語|人)?", r"-?(0|[1-9]\d*)(\.\d+)?"),
)
GRAMMARS = (
    'root ::= "a" root | "b"',
    'root ::= item ("," item)*\nitem ::= [0-9]+',
    'root ::= "(" root ")" | ""',
    'root ::= ("a"? "b"?)* "c"',
    'start: greeting NAME\ngreeting: "hello " | "hi "\nNAME: /[A-Z][a-z]+/',
    'start: "{" %json {"type": "integer"} "}"',
)


def formats() -> list[Format]:
    """Formats of every kind, and random schemas."""
    found: list[Format] = [{"type": "regex", "pattern": pattern} for pattern in EXPRESSIONS]
    found += [{"type": "grammar", "grammar": source} for source in GRAMMARS]
    words = [["yes", "no"], ["a", "ab", "abc"], ["the weather", "the"], ['say "hi"', "a/b", "line\nbreak"]]
    found += [{"type": "or", "elements": [{"type": "const_string", "value": word} for word in some]} for some in words]
    for forced in (True, False):
        found += [
            form.constraint(TOOLS, at_least_one=forced, name=None, parallel=forced) for form in TOOL_FORMATS.values()
        ]
    integer = json_schema({"type": "integer"})
    found += [
        reasoning.constraint(integer, opened=opened) for reasoning in REASONINGS.values() for opened in (True, False)
    ]
    drawn: list[Schema] = []

    @settings(
        max_examples=250, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(schema=schemas())
    def collect(schema: Schema) -> None:
        drawn.append(schema)

    collect()
    return found + [json_schema(schema) for schema in drawn]


def grammars() -> list[Grammar]:
    """What the formats become for vLLM; those that are refused are left out."""
    found: dict[Grammar, None] = {}
    for wanted in formats():
        try:
            found[grammar(wanted, INFO, param="x")] = None
        except InvalidRequestError:
            continue
    return list(found)


def follow(wanted: Grammar, stop_token_ids: list[int], token_ids: list[int]) -> list[npt.NDArray[np.int32]]:
    """The embedded engine's masks before each token, and after the last."""
    vocabulary = demo()
    constraint = vocabulary.make(wanted, stop_token_ids)
    masks = []
    for token_id in [*token_ids, None]:
        masks.append(np.zeros(-(-vocabulary.size // 32), dtype=np.int32))
        constraint.fill(masks[-1])
        assert token_id is None or constraint.accept(token_id)
    return masks


def ask(python: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of vLLM's backend, by one process."""
    walks = Path(__file__).with_name("guidance_walks.py")
    answers: list[dict[str, Any]] = json.loads(
        output_of(python, walks, str(DEMO), str(demo().size), given=json.dumps(cases))
    )
    return answers


def case(wanted: Grammar, number: int) -> dict[str, Any]:
    """A case of `guidance_walks`."""
    preferred = [*np.flatnonzero(demo().closing).tolist(), *MARKERS.values()]
    return {
        "kind": wanted.kind,
        "text": wanted.text,
        "stop_token_ids": [demo().eos, *([ENDOFTEXT] if number % 2 else [])],
        "seed": number,
        "preferred": preferred,
    }


def test_masks_are_the_embedded_engines(warm_python: str) -> None:
    made = grammars()
    assert len(made) > 120
    cases = [case(wanted, number) for number, wanted in enumerate([*made, *WRONG])]
    answers = ask(warm_python, cases)
    for wanted, asked, answer in zip(made, cases, answers, strict=False):
        assert "error" not in answer, (asked, answer)
        masks = follow(wanted, asked["stop_token_ids"], answer["token_ids"])
        for place, (mask, written) in enumerate(zip(masks, answer["masks"], strict=True)):
            other = np.frombuffer(bytes.fromhex(written), dtype="<i4")
            bits = np.unpackbits((mask ^ other).view(np.uint8), bitorder="little")
            differ = set(np.flatnonzero(bits).tolist()) - set(MARKERS.values())
            assert not differ, (asked, place, differ)
    # No request gets so far: the engine compiles each grammar before.
    for wanted, answer in zip(WRONG, answers[len(made) :], strict=True):
        assert "error" in answer
        with pytest.raises(GrammarError):
            demo().make(wanted)
