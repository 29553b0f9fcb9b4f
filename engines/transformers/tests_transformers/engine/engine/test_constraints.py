"""Grammars in the embedded engine: made-up ones that know how they are used, and the real ones."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from openai_bls.core.engine_types import Grammar, SamplingParams
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.grammars import llguidance_backend
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.engines.grammars.matcher import Constraint
from openai_bls.engines.registry import create_engine
from openai_bls_transformers.engine import prefill_queue
from tests.engine_contract.support import GREEDY, PATIENCE_S, Recorder, request
from tests.paths import DEMO
from tests_transformers.engine.arrivals import run_together
from tests_transformers.engine.engine.test_engine import COUNT, PROMPTS, expected, model
from tests_transformers.engine.overlapping import IN_EVERY_WAY, steps
from tests_transformers.engine.restarts import counted_restarts

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory

__all__ = ["expected", "model", "steps"]  # fixtures

DIGITS = range(48, 58)
AT_ONCE = "start: X\nX: /(?s:.*)(a|b)(?s:.{500})c/ & /(?s:.*)(a|d)(?s:.{499})c/"
LATER = "start: X\nX: /(?s:.*)/ & ~/(?s:.*)(a.{60}b|b.{50}a|c.{40}a)(?s:.*)/"
STOP = 257
DRAWN = SamplingParams(temperature=1.5, seed=5)


class Fake:
    """Follows a plan: at each place the tokens that may come; `least` says from where on it may end, `fails` which
    method fails after how many tokens, and how."""

    def __init__(
        self,
        plan: list[Sequence[int]],
        stops: Sequence[int],
        least: int,
        *,
        fails: tuple[str, int, str] = ("", 0, ""),
    ) -> None:
        self.plan, self.stops, self.least, self.fails = plan, stops, least, fails
        self.taken: list[int] = []
        self.fills: list[int] = []

    def check(self, method: str) -> None:
        where, place, how = self.fails
        if where == method and len(self.taken) >= place:
            raise GrammarError("too complex") if how == "limit" else RuntimeError("a library's bug")

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        self.fills.append(len(self.taken))
        self.check("fill")
        assert not self.ended, "a step after the end"
        bits = np.zeros(len(mask) * 32, bool)
        bits[list(self.plan[len(self.taken)])] = True
        if len(self.taken) >= self.least:
            bits[list(self.stops)] = True
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token_id: int) -> bool:
        self.check("accept")
        if token_id not in self.plan[len(self.taken)]:
            return False
        self.taken.append(token_id)
        return True

    def look_ahead(self, token_ids: Sequence[int]) -> list[Any]:
        raise AssertionError("nothing is drafted here")

    def forced(self) -> list[int]:
        raise AssertionError("nothing is drafted here")

    @property
    def ended(self) -> bool:
        self.check("ended")
        return len(self.taken) == len(self.plan)


# A small and a large grammar, which different threads compile.
BOTH_GATES = ("gate", "gate:" + " " * 10_000)


class Factory:
    """Grammars by their text."""

    backend = "llguidance"

    def warm_up(self) -> None: ...

    def fill_bitmasks(self, constraints: Sequence[Constraint]) -> None: ...

    def give_up(self, grammar: Grammar, owner: str = "") -> None: ...

    def close(self) -> None: ...

    def __init__(self) -> None:
        self.made: list[Fake] = []
        self.gate = threading.Event()
        self.at_gate = threading.Semaphore(0)
        self.threads: set[str] = set()

    def make(self, grammar: Grammar, stop_token_ids: Sequence[int], owner: str = "") -> Fake:
        self.threads.add(threading.current_thread().name)
        kind, _, rest = grammar.text.partition(":")
        if kind == "gate":
            self.at_gate.release()
            assert self.gate.wait(PATIENCE_S)
        if kind == "bad":
            raise GrammarError("the schema has no type")
        if kind == "crash":
            raise RuntimeError("a library's bug")
        plan: list[Sequence[int]] = [DIGITS] * 300
        if kind == "list":
            plan = [[int(token)] for token in rest.split(",") if token]
        fails = ("", 0, "")
        if kind == "fails":
            method, place, how = rest.split(":")
            fails = (method, int(place), how)
        least = 3 if kind == "digits" else len(plan)
        made = Fake(plan, stop_token_ids, least, fails=fails)
        self.made.append(made)
        return made


def grammar(text: str) -> Grammar:
    return Grammar(kind="regex", text=text)


def listed(tokens: Sequence[int]) -> Grammar:
    return grammar("list:" + ",".join(map(str, tokens)))


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Factory]:
    factory = Factory()
    monkeypatch.setattr(llguidance_backend, "load", lambda *args: factory)
    yield factory
    factory.gate.set()


@IN_EVERY_WAY
def test_a_fixed_list_alone_and_beside_others(
    start: EngineFactory, factory: Factory, expected: list[list[int]]
) -> None:
    engine, recorder = start()
    assert "grammar" in engine.info.supported
    assert engine.info.grammar_backend == "llguidance"
    tokens = [300, 2, 2, 511, 0, 31, 32]
    engine.submit(request(1, max_tokens=30, grammar=listed(tokens), stop_token_ids=(STOP,), logprobs=0))
    recorder.wait_end(1)
    for i, prompt in enumerate(PROMPTS):
        engine.submit(request(100 + i, prompt=prompt, max_tokens=COUNT))
        params = DRAWN if i % 2 else GREEDY
        engine.submit(request(200 + i, prompt=prompt, max_tokens=30, grammar=listed(tokens[i % 4 :]), sampling=params))
    recorder.wait_end(*range(100, 100 + len(PROMPTS)), *range(200, 200 + len(PROMPTS)))
    assert recorder.tokens[1] == tokens
    for i in range(len(PROMPTS)):
        assert recorder.tokens[100 + i] == expected[i]
        assert recorder.tokens[200 + i] == tokens[i % 4 :]
        assert recorder.ends[200 + i].finish_reason == "stop"
        assert recorder.ends[200 + i].stop_token_id is None
    assert all(made.fills == list(range(len(made.plan))) for made in factory.made), "a mask for an unknown last token"
    assert not {name for name in factory.threads if name.startswith("transformers-engine")}


@IN_EVERY_WAY
def test_a_constrained_sequence_takes_part_in_every_step(start: EngineFactory, factory: Factory) -> None:
    engine, recorder = start()
    for i, count in enumerate((1, 4)):
        before = engine.stats().steps
        ids = range(10 * i, 10 * i + count)
        asked = [request(request_id, max_tokens=30, grammar=grammar("endless")) for request_id in ids]
        assert {len(tokens) for tokens in run_together(engine, recorder, asked)} == {30}
        assert engine.stats().steps - before <= 30 + count + 1


@IN_EVERY_WAY
def test_a_stop_token_only_where_the_grammar_may_end(start: EngineFactory, factory: Factory) -> None:
    engine, recorder = start()
    push = SamplingParams(temperature=0, logit_bias={STOP: 100.0})
    engine.submit(request(1, max_tokens=20, grammar=grammar("digits"), stop_token_ids=(STOP,), sampling=push))
    engine.submit(
        request(2, max_tokens=20, grammar=grammar("digits"), stop_token_ids=(STOP,), sampling=push, min_tokens=7)
    )
    engine.submit(request(3, max_tokens=6, grammar=grammar("endless"), stop_token_ids=(STOP,), sampling=push))
    # The grammar wins where nothing else may follow.
    engine.submit(request(4, max_tokens=20, grammar=listed([9, 9]), stop_token_ids=(STOP,), min_tokens=10))
    engine.submit(request(5, max_tokens=20, grammar=grammar("list:")))
    engine.submit(request(6, max_tokens=20, grammar=listed([9, 8]), bad_words=((9,), (9, 8))))
    recorder.wait_end(1, 2, 3, 4, 5, 6)
    assert [len(recorder.tokens[i]) for i in range(1, 7)] == [3, 7, 6, 2, 0, 2]
    assert [recorder.reason(i) for i in range(1, 7)] == ["stop", "stop", "length", "stop", "stop", "stop"]
    assert [recorder.ends[i].stop_token_id for i in range(1, 7)] == [STOP, STOP, None, None, None, None]


@IN_EVERY_WAY
def test_restarts(start: EngineFactory, factory: Factory) -> None:
    engine, recorder = start(max_tokens_in_kv_cache="512")
    asked: dict[str, Any] = {"max_tokens": 90, "grammar": grammar("endless"), "sampling": DRAWN, "logprobs": 1}
    prompts = [[i + 1] * 100 for i in range(4)]
    for i, prompt in enumerate(prompts):
        engine.submit(request(100 + i, prompt=prompt, **asked))
        recorder.wait_end(100 + i)
    with counted_restarts(engine) as restarts:
        run_together(engine, recorder, [request(i, prompt=prompt, **asked) for i, prompt in enumerate(prompts)])
    assert restarts
    assert [recorder.tokens[i] for i in range(4)] == [recorder.tokens[100 + i] for i in range(4)]
    assert {len(recorder.tokens[i]) for i in range(4)} == {90}


def test_grammars_that_cannot_be_compiled(start: EngineFactory, factory: Factory) -> None:
    engine, recorder = start()
    engine.submit(request(1, grammar=grammar("bad")))
    engine.submit(request(2, grammar=grammar("crash")))
    engine.submit(request(3))
    recorder.wait_end(1, 2, 3)
    assert (recorder.reason(1), recorder.ends[1].invalid) == ("error", True)
    assert "the schema has no type" in (recorder.ends[1].error or "")
    assert (recorder.reason(2), recorder.ends[2].invalid) == ("error", False)
    assert "bug" not in (recorder.ends[2].error or "")
    assert recorder.reason(3) == "length"
    assert engine.stats().waiting == 0


FAILURES = [
    ("ended", 0, "limit"),
    ("ended", 0, "bug"),
    ("ended", 5, "limit"),
    ("ended", 5, "bug"),
    ("fill", 0, "limit"),
    ("fill", 0, "bug"),
    ("fill", 5, "limit"),
    ("fill", 5, "bug"),
    ("accept", 0, "bug"),
    ("accept", 5, "limit"),
]


@IN_EVERY_WAY
def test_a_grammar_that_fails_is_one_requests_error(
    start: EngineFactory, factory: Factory, expected: list[list[int]]
) -> None:
    engine, recorder = start()
    for i, prompt in enumerate(PROMPTS[:4]):
        engine.submit(request(100 + i, prompt=prompt, max_tokens=COUNT))
    engine.submit(request(200, max_tokens=40, grammar=grammar("endless"), sampling=DRAWN))
    for i, (method, place, how) in enumerate(FAILURES):
        chosen = grammar(f"fails:{method}:{place}:{how}")
        sampling = DRAWN if i % 2 else GREEDY
        engine.submit(request(i, max_tokens=300, grammar=chosen, sampling=sampling, logprobs=1 if i % 3 else None))
    recorder.wait_end(*range(len(FAILURES)), *range(100, 104), 200)
    for i, (_, place, how) in enumerate(FAILURES):
        end = recorder.ends[i]
        assert (end.finish_reason, end.invalid) == ("error", how == "limit"), FAILURES[i]
        assert ("too complex" in (end.error or "")) == (how == "limit")
        assert "bug" not in (end.error or "")
        assert len(recorder.tokens[i]) in (place, max(0, place - 1))  # the last may be lost with what came of it
    assert [recorder.tokens[100 + i] for i in range(4)] == expected[:4]
    assert (len(recorder.tokens[200]), recorder.reason(200)) == (40, "length")
    engine.submit(request(300, max_tokens=40, grammar=grammar("endless")))
    recorder.wait_end(300)
    assert (len(recorder.tokens[300]), recorder.reason(300)) == (40, "length")
    for made in factory.made:
        if made.fails[0]:
            assert len(made.fills) <= made.fails[1] + 2, "it goes on in the batcher"
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)


def test_what_fails_before_the_first_step_is_one_requests_error(
    start: EngineFactory, factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = start()
    real_processors, real_add = prefill_queue.HostLogitsProcessors, engine._batcher.add  # type: ignore[attr-defined]

    class HostLogitsProcessors(real_processors):  # type: ignore[misc,valid-type]
        def __init__(self, request: Any, *args: Any) -> None:
            if request.request_id < 10:
                raise IndexError("processors")
            super().__init__(request, *args)

    def add(key: str, prompt_token_ids: list[int], *args: Any) -> None:
        if prompt_token_ids == [66]:
            raise IndexError("add")
        real_add(key, prompt_token_ids, *args)

    monkeypatch.setattr(prefill_queue, "HostLogitsProcessors", HostLogitsProcessors)
    monkeypatch.setattr(engine._batcher, "add", add)  # type: ignore[attr-defined]
    engine.submit(request(1, logprobs=1))
    engine.submit(request(2, grammar=grammar("endless")))
    engine.submit(request(11, [66]))
    engine.submit(request(12, [66], grammar=grammar("endless")))
    engine.submit(request(13, grammar=grammar("endless"), logprobs=1))
    recorder.wait_end(1, 2, 11, 12, 13)
    for i in (1, 2, 11, 12):
        assert (recorder.reason(i), recorder.ends[i].invalid, recorder.ends[i].error) == ("error", False, ENGINE_FAILED)
    assert (recorder.reason(13), len(recorder.tokens[13])) == ("length", 8)
    assert engine.stats().waiting == 0


def test_cancel_while_compiling(start: EngineFactory, factory: Factory) -> None:
    engine, recorder = start()
    engine.submit(request(1, grammar=grammar(BOTH_GATES[0])))
    engine.submit(request(2, grammar=grammar(BOTH_GATES[1])))
    for _ in range(2):
        assert factory.at_gate.acquire(timeout=PATIENCE_S)
    engine.submit(request(3, max_tokens=5))
    recorder.wait_end(3)  # nobody waits for the compiler
    assert engine.stats().waiting == 2
    engine.cancel(1)
    recorder.wait_end(1)
    assert recorder.reason(1) == "cancelled"
    recorder.forget([1])
    engine.submit(request(1, max_tokens=7))  # the id is free again
    recorder.wait_end(1)
    factory.gate.set()
    recorder.wait_end(2)
    assert len(recorder.tokens[2]) == 8
    assert len(recorder.tokens[1]) == 7
    assert engine.stats().waiting == 0


def test_close_while_compiling(start: EngineFactory, factory: Factory) -> None:
    engine, recorder = start()
    for i in range(5):
        engine.submit(request(i, grammar=grammar("gate")))
    assert factory.at_gate.acquire(timeout=PATIENCE_S)
    engine.close()
    assert {recorder.reason(i) for i in range(5)} == {"cancelled"}
    factory.gate.set()


@IN_EVERY_WAY
def test_cancel_while_running(start: EngineFactory, factory: Factory) -> None:
    engine, recorder = start()
    for i in range(8):
        engine.submit(request(i, max_tokens=300, grammar=grammar("endless") if i % 2 else None))
    for i in range(8):
        recorder.wait_tokens(i, 3)
        engine.cancel(i)
    recorder.wait_end(*range(8))
    assert {recorder.reason(i) for i in range(8)} <= {"cancelled", "length"}
    engine.submit(request(20, max_tokens=9, grammar=grammar("endless")))
    recorder.wait_end(20)
    assert len(recorder.tokens[20]) == 9


@pytest.fixture(scope="module")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine with the demo checkpoint and its tokenizer."""
    folder = tmp_path_factory.mktemp("engine") / "tensorrt_llm" / "1"
    shutil.copytree(DEMO, folder / "checkpoint")
    (folder / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / "tokenizer" / name)
    manifest = Manifest(engine="transformers", model_name="demo", max_model_len=512, max_batch_size=8, created=1)
    write_manifest(folder, manifest)
    return folder


def test_real_grammars(demo_dir: Path) -> None:
    recorder = Recorder()
    engine = create_engine(demo_dir, recorder, {"num_threads": "1"})
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    prompt = tokenizer.encode("What is machine learning?").ids
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    pattern = r"(yes|no), [0-9]{3}\."
    kinds: list[Any] = [("json_schema", json.dumps(schema)), ("regex", pattern)]
    assert engine.info.grammar_backend == "llguidance"
    asked = [(Grammar(kind=kind, text=text), sampling) for kind, text in kinds for sampling in (GREEDY, DRAWN)]
    for i, (wanted, sampling) in enumerate(asked):
        engine.submit(
            request(i, prompt, 200, sampling, grammar=wanted, stop_token_ids=engine.info.eos_token_ids, logprobs=1)
        )
    engine.submit(request(90, prompt, 20, grammar=Grammar(kind="json_schema", text="{")))
    # Beyond the budget of compilation, and beyond llguidance's limits after some tokens.
    letters = SamplingParams(temperature=0, logit_bias={tokenizer.encode(letter).ids[0]: 100.0 for letter in "ab"})
    for i, text in ((91, AT_ONCE), (92, LATER)):
        lark = Grammar(kind="lark", text=text)
        engine.submit(request(i, prompt, 200, letters, grammar=lark, stop_token_ids=engine.info.eos_token_ids))
    recorder.wait_end(*range(len(asked)), 90, 91, 92)
    engine.close()
    assert recorder.breaches == []
    assert recorder.ends[90].invalid
    for i, said in ((91, "to compile"), (92, "beyond llguidance's limits")):
        assert recorder.ends[i].invalid
        assert said in (recorder.ends[i].error or "")
    assert (len(recorder.tokens[91]), len(recorder.tokens[92]) > 3) == (0, True)
    for i, (wanted, _) in enumerate(asked):
        text = tokenizer.decode(recorder.tokens[i])
        if recorder.reason(i) == "length":  # an endless number, say
            assert wanted.kind == "json_schema"
            continue
        assert recorder.reason(i) == "stop", recorder.ends[i]
        if wanted.kind == "regex":
            assert re.fullmatch(pattern, text)
        else:
            assert set(json.loads(text)) == {"name", "age"}
