"""Grammars in vLLM's terms, held against llguidance; tests_vllm/installed holds them against vLLM."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls_vllm.grammars import structured_outputs
from openai_bls_vllm.grammars.grammars import Grammars
from tests.engine_contract.support import PATIENCE_S
from tests.unit.output.structured.driving import DEMO, accepts, demo

EOS = 2
JSON = Grammar("json_schema", '{"type": "object", "x-guidance": {"whitespace_flexible": false}}')
REGEX = Grammar("regex", "a/b+")
LARK = Grammar("lark", '%llguidance {}\nstart: "{" part "}"\npart: /[a-z]/')


def request(**changes: Any) -> GenerationRequest:
    return GenerationRequest(1, [5], 9, **changes)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [(JSON, '{"a":1}'), (REGEX, "a/b"), (LARK, "{x}")],
    ids=lambda value: getattr(value, "kind", ""),
)
@pytest.mark.parametrize("stops", [(), (3,), (3, 260)])
def test_the_text_is_accepted_as_before(grammar: Grammar, text: str, stops: tuple[int, ...]) -> None:
    found = structured_outputs.lark(grammar, stops)
    assert found.startswith("%llguidance ")
    written = Grammar("lark", found)
    assert accepts(written, text)
    assert not accepts(written, text + text)
    assert not accepts(written, text[:-1])


@pytest.mark.parametrize("version", ["1.7.0", "1.7.6", "1.9.1"])
def test_releases_that_were_tried(version: str) -> None:
    assert structured_outputs.why_not(version) == ""


@pytest.mark.parametrize("version", ["1.6.1", "1.70.0", "2.0.0", "dev", None])
def test_other_releases_are_refused(version: str | None) -> None:
    assert structured_outputs.why_not(version).startswith("structured output is refused: llguidance ")


def test_the_tokenizers_end_token_ends_the_sequence() -> None:
    stops = request(grammar=JSON, stop_token_ids=(7, 2))
    assert structured_outputs.sampling(stops, 2) == {"stop_token_ids": [7, 2]}
    assert structured_outputs.sampling(stops, None) == {"stop_token_ids": [7, 2]}
    goes_on = request(grammar=JSON, sampling=SamplingParams(logit_bias={4: 1.0}))
    assert structured_outputs.sampling(goes_on, 2) == {
        "stop_token_ids": [2],
        "logit_bias": {4: 1.0, 2: structured_outputs.END_BIAS},
    }


def test_a_stop_token_that_is_text_is_refused() -> None:
    grammars = Grammars(DEMO, demo().size, (EOS,))
    text = demo().id_of_byte[ord("a")]
    with pytest.raises(GrammarError, match=f"stop_token_ids has {text}"):
        grammars.constrain(request(grammar=JSON, stop_token_ids=(EOS, text)))
    found = grammars.constrain(request(grammar=JSON, stop_token_ids=(EOS, 1)))
    assert found.structured_outputs == {"grammar": structured_outputs.lark(JSON, (1,))}


class Progresses:
    """A compiler that waits at a gate, and notes what is given up."""

    eos_token_id = EOS

    def __init__(self) -> None:
        self.begun: queue.Queue[str] = queue.Queue()
        self.gate = threading.Event()
        self.given_up: list[tuple[Grammar, str]] = []
        self.closed = False

    def text_token_ids(self, token_ids: Any) -> list[int]:
        return []

    def start(self, grammar: Grammar, owner: str, min_tokens: int) -> Any:
        self.begun.put(owner)
        assert self.gate.wait(PATIENCE_S)
        return owner

    def give_up(self, grammar: Grammar, owner: str) -> None:
        self.given_up.append((grammar, owner))

    def close(self) -> None:
        self.closed = True


def test_keys_take_turns_and_what_nobody_waits_for_is_given_up() -> None:
    grammars = Grammars(DEMO, demo().size, (EOS,))
    progresses: Any = Progresses()
    grammars._progress = progresses
    futures = {key: grammars.start(key, request(grammar=JSON, owner=key[:5])) for key in ("alice1", "alice2")}
    assert progresses.begun.get(timeout=PATIENCE_S) == "alice"
    futures["bobby1"] = grammars.start("bobby1", request(grammar=JSON, owner="bobby"))
    grammars.cancel("alice1")
    assert progresses.given_up == []  # the second request waits for the same
    grammars.cancel("alice2")
    grammars.cancel("alice2")
    assert progresses.given_up == [(JSON, "alice")]
    progresses.gate.set()
    assert [progresses.begun.get(timeout=PATIENCE_S) for _ in range(2)] == ["bobby", "alice"]
    made: Any = futures["bobby1"].result(PATIENCE_S).progress
    assert made == "bobby"
    futures["alice2"].result(PATIENCE_S)
    grammars.cancel("bobby1")
    assert progresses.given_up == [(JSON, "alice")]
    grammars.close()
    assert progresses.closed


def test_stop_tokens_of_the_grammar() -> None:
    assert structured_outputs.end_tokens([7, 2, 7, -1, 100], 2, 100) == [7]
