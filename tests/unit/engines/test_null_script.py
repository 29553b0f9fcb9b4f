"""The null engine plays turns of text: which one, at what pace, and held to which grammar."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from openai_bls.core.engine_types import EngineInfo, Grammar
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.grammars import llguidance_backend
from openai_bls.engines.null import script
from tests.engine_contract.support import VOCAB_SIZE, request

if TYPE_CHECKING:
    from openai_bls.core.engine import Engine
    from tests.engine_contract.fixtures import EngineFactory
    from tests.engine_contract.support import Recorder

EOS = 257
PATCH = Grammar(
    "lark",
    'start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?\n'
    'hunk: "*** Add File: " /(.+)/ LF line+\nline: "+" /(.*)/ LF\nLF: "\\n"\n',
)
GOOD_PATCH = "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch\n"

Play = Callable[..., tuple["Engine", "Recorder"]]


@pytest.fixture
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


@pytest.fixture
def play(start: EngineFactory, folder: Path, checkpoint: Path, tmp_path: Path) -> Play:
    """Start an engine that plays these turns."""
    shutil.copytree(checkpoint, folder / "tokenizer")

    def start_with(*turns: dict[str, Any], **overrides: str) -> tuple[Engine, Recorder]:
        file = tmp_path / "script.json"
        file.write_text(json.dumps({"turns": turns}), encoding="utf-8")
        return start(folder, engine="null", null_script=str(file), **overrides)

    return start_with


def ids(text: str, tokenizer: Tokenizer) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def test_the_first_turn_that_is_for_the_prompt(play: Play, tokenizer: Tokenizer) -> None:
    engine, recorder = play(
        {"when": ["greet", "</tool>"], "text": "twice", "counts": {"</tool>": 2}},
        {"when": ["greet", "</tool>"], "text": "once"},
        {"counts": {"</tool>": 0}, "when": ["greet"], "text": "none"},
        {"text": "other"},
    )
    prompts = ["greet </tool></tool>", "greet </tool>", "greet", "</tool>"]
    for i, prompt in enumerate(prompts):
        engine.submit(request(i, prompt=ids(prompt, tokenizer), max_tokens=50, stop_token_ids=(EOS,)))
    recorder.wait_end(*range(4))
    assert [tokenizer.decode(recorder.tokens[i]) for i in range(4)] == ["twice", "once", "none", "other"]
    assert {(recorder.reason(i), recorder.ends[i].stop_token_id) for i in range(4)} == {("stop", EOS)}


def test_limits_of_a_request_hold(play: Play, tokenizer: Tokenizer) -> None:
    engine, recorder = play({"text": "one<|im_end|>two"})
    end = tokenizer.token_to_id("<|im_end|>")
    engine.submit(request(1, max_tokens=2))
    engine.submit(request(2, max_tokens=50, stop_token_ids=(end,)))
    engine.submit(request(3, max_tokens=50, stop_words=(tuple(ids("n", tokenizer)),)))
    engine.submit(request(4, max_tokens=50))
    engine.submit(request(5, max_tokens=5, stop_token_ids=(EOS,), min_tokens=5))
    recorder.wait_end(1, 2, 3, 4, 5)
    assert [tokenizer.decode(recorder.tokens[i]) for i in (1, 2, 3)] == ["on", "one", "on"]
    assert recorder.tokens[4] == [*ids("one", tokenizer), end, *ids("two", tokenizer)]
    assert (len(recorder.tokens[5]), recorder.reason(5)) == (5, "length")
    assert [recorder.reason(i) for i in (1, 2, 3, 4)] == ["length", "stop", "stop", "stop"]


@pytest.mark.parametrize("count", [1, 4, 100])
def test_tokens_of_a_step(count: int, play: Play, tokenizer: Tokenizer) -> None:
    text = "eleven char"
    engine, recorder = play({"text": text, "tokens_per_step": count})
    engine.submit(request(1, max_tokens=50, logprobs=1))
    engine.submit(request(2, max_tokens=len(text), logprobs=0))
    recorder.wait_end(1, 2)
    for i in (1, 2):
        assert tokenizer.decode(recorder.tokens[i]) == text
        sizes = [len(delta.token_ids) for delta in recorder.deltas(i) if delta.token_ids]
        assert max(sizes) == min(count, len(text))
        assert len(recorder.logprobs(i).token_logprobs) == len(text)
    assert engine.stats().generated_tokens == 2 * len(text) + 1  # and an end token


def test_a_silent_turn_holds_up_no_other(play: Play, tokenizer: Tokenizer) -> None:
    engine, recorder = play({"when": ["slow"], "text": "late", "first_token_delay_ms": 3_600_000}, {"text": "soon"})
    engine.submit(request(1, prompt=ids("slow", tokenizer)))
    engine.submit(request(2))
    recorder.wait_end(2)
    assert 1 not in recorder.ends
    engine.cancel(1)
    recorder.wait_end(1)
    assert recorder.reason(1) == "cancelled"


def test_a_silence_lasts(play: Play) -> None:
    engine, recorder = play({"text": "late", "first_token_delay_ms": 300})
    engine.submit(request(1))
    assert not recorder.deltas(1)
    recorder.wait_end(1)
    assert [len(delta.token_ids) for delta in recorder.deltas(1)] == [1, 1, 1, 1, 0]


def test_a_text_within_the_grammar_is_played_as_it_is(play: Play, tokenizer: Tokenizer) -> None:
    engine, recorder = play({"text": GOOD_PATCH, "tokens_per_step": 3})
    assert "grammar" in engine.info.supported
    engine.submit(request(1, max_tokens=200, grammar=PATCH, stop_token_ids=(EOS,)))
    recorder.wait_end(1)
    assert tokenizer.decode(recorder.tokens[1]) == GOOD_PATCH
    assert recorder.reason(1) == "stop"


@pytest.mark.parametrize(
    "text",
    [
        GOOD_PATCH.replace("*** Begin", "*** Start"),
        GOOD_PATCH.replace("+one", "one"),
        GOOD_PATCH.replace("*** End Patch", "That is all."),
        "I would rather not.",
        "",
    ],
)
def test_a_text_that_breaks_the_grammar_is_held_to_it(text: str, play: Play, tokenizer: Tokenizer) -> None:
    engine, recorder = play({"text": text})
    engine.submit(request(1, max_tokens=200, grammar=PATCH, stop_token_ids=(EOS,)))
    recorder.wait_end(1)
    made = tokenizer.decode(recorder.tokens[1])
    if recorder.reason(1) == "stop":
        assert re.fullmatch(r"\*\*\* Begin Patch\n(\*\*\* Add File: .+\n(\+.*\n)+)+\*\*\* End Patch\n?", made), made
    else:
        assert made.startswith("*** Begin Patch\n*** Add File: ")


REGEXES = ["(ab|cd)+e", "[a-z]{3,5}", "x*", "a?b?c?", '\\{"n": [0-9]+\\}']


@given(st.sampled_from(REGEXES), st.text('abcdex{}" n:0123', max_size=30), st.integers(0, 3))
def test_every_output_matches_its_grammar(checkpoint: Path, regex: str, text: str, min_tokens: int) -> None:
    info = EngineInfo("null", "m", 512, 1, VOCAB_SIZE, (EOS,))
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    grammars = llguidance_backend.load(checkpoint, VOCAB_SIZE, (EOS,))
    player = script.Script([script.Turn(text)], tokenizer, info, grammars)
    asked = request(1, max_tokens=40, grammar=Grammar("regex", regex), stop_token_ids=(EOS,), min_tokens=min_tokens)
    output = player.output_of(asked)
    made = tokenizer.decode(output.token_ids)
    if output.finish_reason == "stop":
        assert re.fullmatch(regex, made)
    else:
        assert len(output.token_ids) == 40
    if re.fullmatch(regex, text) and len(text) >= min_tokens:
        assert made == text


def test_a_bad_grammar_ends_its_request_alone(play: Play, tokenizer: Tokenizer) -> None:
    engine, recorder = play({"text": "abc"})
    engine.submit(request(1, grammar=Grammar("lark", "start: (")))
    engine.submit(request(2))
    recorder.wait_end(1, 2)
    assert recorder.ends[1].invalid
    assert tokenizer.decode(recorder.tokens[2]) == "abc"


@pytest.mark.parametrize(
    "content",
    [
        b"{", b"\xff", b"[]", b'{"turns": []}', b'{"turns": [{"text": 1}]}', b'{"turns": [{"text": "", "speed": 1}]}',
        b'{"turns": [{"text": "", "when": ["a"]}]}', b'{"turns": [{"text": "", "counts": {"a": 1}}]}',
        b'{"turns": [{"text": "", "tokens_per_step": 0}]}',
    ],
)  # fmt: skip
def test_bad_scripts(content: bytes, start: EngineFactory, folder: Path, checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, folder / "tokenizer")
    file = tmp_path / "script.json"
    file.write_bytes(content)
    with pytest.raises(EngineLoadError, match=r"script\.json"):
        start(folder, engine="null", null_script=str(file))


def test_what_a_script_needs(start: EngineFactory, play: Play, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"missing\.json"):
        start(folder, engine="null", null_script=str(tmp_path / "missing.json"))
    for name, value in (("null_echo", "true"), ("null_token_ids", "4"), ("null_lora_names", "red")):
        with pytest.raises(EngineLoadError, match=name):
            play({"text": ""}, **{name: value})
    (folder / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(EngineLoadError, match="tokenizer"):
        play({"text": ""})
