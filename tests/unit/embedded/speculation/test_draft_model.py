"""A draft model: what it guesses, what it keeps of sequences, and that answers are those without it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from openai_bls.core.engine_types import Grammar
from openai_bls.core.manifest import EngineLoadError, load_manifest, write_manifest
from openai_bls.embedded.speculation import draft_cache, draft_model
from openai_bls.embedded.speculation.draft_budget import Account, DraftBudget
from openai_bls.embedded.speculation.draft_model import DraftModel, Wanted
from openai_bls.embedded.speculation.drafter import ModelPace
from tests.unit.embedded.engine.test_constraints import demo_dir
from tests.unit.embedded.engine.test_engine import PROMPTS
from tests.unit.embedded.engine.test_engine_features import EVERYTHING
from tests.unit.embedded.overlapping import overlap, ways
from tests.unit.embedded.speculation.test_speculation import (
    COUNT,
    DRAWN,
    PROMPT,
    accepted,
    check,
    plain,
    varied,
)
from tests.unit.engines.engine_support import VOCAB_SIZE, counted_restarts, make_checkpoint, request, run_all

if TYPE_CHECKING:
    from tests.unit.engines.conftest import EngineFactory

__all__ = ["demo_dir", "ways"]  # fixtures

LENGTH = 256


@pytest.fixture(scope="module")
def own_draft(version_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine whose draft model is its model."""
    return with_draft(version_dir, tmp_path_factory.mktemp("own"), version_dir / "checkpoint")


@pytest.fixture(scope="module")
def other_draft(version_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine whose draft model has nothing to do with its model, and a vocabulary of its own size."""
    other = tmp_path_factory.mktemp("checkpoint") / "other"
    make_checkpoint(other, seed=7, vocab_size=VOCAB_SIZE + 64)
    return with_draft(version_dir, tmp_path_factory.mktemp("other"), other)


def with_draft(version_dir: Path, folder: Path, draft: Path) -> Path:
    """A copy of the engine, with a draft model."""
    shutil.copytree(version_dir, folder, dirs_exist_ok=True)
    shutil.copytree(draft, folder / "draft")
    write_manifest(folder, msgspec.structs.replace(load_manifest(folder), draft_checkpoint="draft"))
    return folder


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses that take next to no time, which those of a model as large as the other do not."""
    cost(monkeypatch, 0.01)


def cost(monkeypatch: pytest.MonkeyPatch, guess: float) -> None:
    """Let a guess take so many steps without drafts, whatever is measured."""
    monkeypatch.setattr(Account, "is_overdrawn", False)
    monkeypatch.setattr(DraftBudget, "step_cost", 1.2)
    monkeypatch.setattr(ModelPace, "guess_cost", guess)


@pytest.mark.usefixtures("ways")
def test_the_model_as_its_own_draft(start: EngineFactory, own_draft: Path) -> None:
    """Nearly all guesses are right, one step brings several tokens, and every answer is what it is without."""
    usual = plain(start, [request(0, prompt=PROMPT, max_tokens=COUNT)])[0].tokens
    requests = varied(usual)
    wanted = plain(start, requests)
    engine, recorder = start(folder=own_draft)
    before, steps = accepted(engine), engine.stats().steps
    run_all(engine, recorder, requests[:1])
    drafted, right = (now - then for now, then in zip(accepted(engine), before, strict=True))
    assert right == drafted > COUNT * 0.7
    assert engine.stats().steps - steps < COUNT / 3
    check(recorder, requests[:1], wanted[:1])
    for first in range(1, len(requests), 7):
        run_all(engine, recorder, requests[first : first + 7])
        check(recorder, requests[first : first + 7], wanted[first : first + 7])


def test_drafts_that_come_and_go(
    start: EngineFactory, demo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of every kind come and are cancelled while pages run out, and whether there are drafts is a toss-up."""
    overlap(monkeypatch)
    source = random.Random(0)
    grammars = (Grammar("regex", "[a-f]{20}"), Grammar("regex", "(yes|no), the answer is [0-9]{2} and not [a-z]{4}"))
    kinds: list[dict[str, Any]] = [{}, {"sampling": DRAWN}, {"sampling": EVERYTHING, "logprobs": 2}]
    kinds += [{"grammar": grammar, "stop_token_ids": (0, 1, 2)} for grammar in grammars]
    requests = [
        request(i, prompt=source.choices(range(40, 300), k=source.randrange(40, 100)), max_tokens=50, **kind)
        for i, kind in enumerate(kinds * 2)
    ]
    wanted = plain(start, requests, folder=demo_dir)
    folder = with_draft(demo_dir, tmp_path, demo_dir / "checkpoint")
    engine, recorder = start(folder=folder, max_tokens_in_kv_cache="512", max_num_tokens="40")
    monkeypatch.setattr(Account, "is_overdrawn", property(lambda _: source.random() < 0.6))
    before = accepted(engine)
    with counted_restarts(engine) as restarts:
        for one, answer in zip(requests, wanted, strict=True):
            tokens = [token ^ (source.random() < 0.1) for token in answer.tokens] if source.random() < 0.5 else []
            engine.submit(msgspec.structs.replace(one, prediction=tuple(tokens)))
        cancelled = source.sample(range(len(requests)), 3)
        for i in cancelled:
            recorder.wait_tokens(i, source.randrange(1, 6))
            engine.cancel(i)
        recorder.wait_end(*range(len(requests)))
    assert restarts, "nothing was started again"
    whole = [i for i in range(len(requests)) if i not in cancelled]
    check(recorder, [requests[i] for i in whole], [wanted[i] for i in whole])
    for i in cancelled:
        assert recorder.tokens[i] == wanted[i].tokens[: len(recorder.tokens[i])]
    assert accepted(engine)[1] - before[1] > 20


@pytest.mark.usefixtures("ways")
def test_another_model_as_draft(start: EngineFactory, other_draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost(monkeypatch, 0.2)
    requests = [request(i, prompt=prompt, max_tokens=COUNT) for i, prompt in enumerate(PROMPTS[:5])]
    requests += [msgspec.structs.replace(one, request_id=10 + i, sampling=DRAWN) for i, one in enumerate(requests[:3])]
    wanted = plain(start, requests)
    engine, recorder = start(folder=other_draft)
    before = accepted(engine)
    run_all(engine, recorder, requests)
    check(recorder, requests, wanted)
    drafted, right = (now - then for now, then in zip(accepted(engine), before, strict=True))
    assert right < drafted * 0.1
    assert 8 < drafted < 8 * COUNT / 2, "no more is guessed where nothing is right"


def test_the_method_is_the_engines_own_unless_it_is_set(start: EngineFactory, own_draft: Path) -> None:
    one = request(0, prompt=PROMPT, max_tokens=COUNT)
    for method, drafts in (("none", False), ("", True)):
        engine, recorder = start(folder=own_draft, speculative_method=method)
        assert ("prediction" in engine.info.supported) is drafts
        run_all(engine, recorder, [one])
        assert (accepted(engine)[0] > 0) is drafts
    with pytest.raises(EngineLoadError, match="has no draft model, build it with --draft-model"):
        start(speculative_method="draft_model")
    with pytest.raises(EngineLoadError, match="a draft model guesses for 128 sequences at most"):
        start(folder=own_draft, speculative_disable_by_batch_size="129")


def test_one_that_does_not_do_is_refused(
    start: EngineFactory, own_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(own_draft, broken)
    (broken / "draft" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EngineLoadError, match="the draft model: the checkpoint does not load"):
        start(folder=broken)
    start(folder=broken, speculative_method="ngram")  # which does not need it
    config = msgspec.json.decode((own_draft / "draft" / "config.json").read_bytes())
    config |= {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}
    shutil.copyfile(own_draft / "draft" / "model.safetensors", broken / "draft" / "model.safetensors")
    (broken / "draft" / "config.json").write_bytes(msgspec.json.encode(config))
    with pytest.raises(EngineLoadError, match="the draft model cannot be used: not all of its layers"):
        start(folder=broken)

    def blind(self: Any, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.zeros_like(q)

    monkeypatch.setattr(draft_cache.SlotCache, "attend", blind)
    with pytest.raises(EngineLoadError, match=r"the draft model cannot be run: \d+% of its guesses"):
        start(folder=own_draft)


@pytest.fixture(scope="module")
def plain_model(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@pytest.fixture
def drafting(checkpoint: Path) -> DraftModel:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    draft_cache.use(model)
    return DraftModel(model, vocab_size=VOCAB_SIZE, slots=2, max_length=LENGTH, most_guesses=8, graphs=False)


def greedy(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    output = model.generate(
        torch.tensor([list(tokens)]), do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0
    )
    found: list[int] = output[0, len(tokens) :].tolist()
    return found


def test_guesses_are_the_models_own(drafting: DraftModel, plain_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several sequences, some of which have read more than others, after accepted and rejected guesses alike."""
    monkeypatch.setattr(draft_model, "_MOST_ROWS", 16)
    a, b = list(PROMPTS[10][:50]), list(PROMPTS[5][:5])
    live = {"a", "b", "c"}
    assert drafting.guess([Wanted("a", a, 4)], live) == [greedy(plain_model, a, 4)]
    expected = greedy(plain_model, b, 2)
    tokens = a
    for accepted_guesses, more in ((2, [9]), (6, [3]), (0, [4]), (6, [5, 6, 7, 8, 9, 10, 11])):
        tokens = [*tokens, *greedy(plain_model, tokens, 6)[:accepted_guesses], *more]
        found = drafting.guess([Wanted("a", tokens, 6), Wanted("b", b, 2)], live)
        assert found == [greedy(plain_model, tokens, 4), expected]
    # A third one takes the place of another.
    assert drafting.guess([Wanted("c", b, 2), Wanted("a", tokens, 3)], live) == [
        expected,
        greedy(plain_model, tokens, 3),
    ]
    assert drafting.guess([Wanted("b", b, 2)], {"b"}) == [expected]


def test_long_prompts_are_read_beside_several_steps(
    drafting: DraftModel, plain_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "_READ_AT_ONCE", 20)
    tokens = list(PROMPTS[10][:50])
    found = [drafting.guess([Wanted("a", tokens, 3)], {"a"})[0] for _ in range(3)]
    assert found == [[], [], greedy(plain_model, tokens, 3)]


def test_beyond_the_longest_sequence_nothing_is_guessed(drafting: DraftModel, plain_model: Any) -> None:
    tokens = list(PROMPTS[10] * 4)[:LENGTH]
    other = list(PROMPTS[5][:5])
    assert drafting.guess([Wanted("b", other, 8)], {"a", "b"}) == [greedy(plain_model, other, 8)]
    assert drafting.guess([Wanted("a", tokens, 8)], {"a", "b"})[0] != []
    assert drafting.guess([Wanted("a", [*tokens, 1], 8)], {"a", "b"}) == [[]]
    # The other's place is as it was.
    longer = [*other, *greedy(plain_model, other, 1)]
    assert drafting.guess([Wanted("b", longer, 8)], {"a", "b"}) == [greedy(plain_model, longer, 8)]
