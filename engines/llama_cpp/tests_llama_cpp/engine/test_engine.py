"""The llama.cpp engine over tiny GGUF files: batches, memory that runs out, prompts in pieces, grammars, bad files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.core.manifest import AnswerRecord, EngineLoadError
from openai_bls.engines.answers import difference
from openai_bls.engines.registry import create_engine
from openai_bls_llama_cpp import engine as engine_module
from openai_bls_llama_cpp import library
from openai_bls_llama_cpp.model import LlamaModel
from tests.engine_contract.fixtures import EngineFactory
from tests.engine_contract.support import PATIENCE_S, request, run_all
from tests.unit.core_support import EOS, tiny_tokenizer
from tests_llama_cpp.engine.llama_cpp_support import needs_llama_cpp, write_engine

pytestmark = needs_llama_cpp

CACHES: list[dict[str, str]] = [{}, {"max_tokens_in_kv_cache": "4096"}]
"""Options of an engine whose 16 places have parts of 512 tokens, and of one whose share fewer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_engine(tmp_path_factory.mktemp("llama_cpp") / "1")


@pytest.fixture
def start_here(start: EngineFactory, folder: Path) -> Any:
    return lambda **options: start(folder, **options)


def require_same(started: Any, other: Any, requests: list[GenerationRequest]) -> None:
    """The same tokens but where two were nearly as likely: llama.cpp adds up in another order in another batch."""
    ids = [one.request_id for one in requests]
    expected, found = (run_all(one[0], one[1], requests) for one in (started, other))
    logprobs = [[recorder.logprobs(i).token_logprobs for i in ids] for _, recorder in (started, other)]
    record = AnswerRecord("cpu", "float16", [one.prompt_token_ids for one in requests], expected, logprobs[0])
    assert difference(record, found, logprobs[1]) == ""
    assert [len(one) for one in found] == [one.max_tokens for one in requests]


@pytest.mark.parametrize("options", CACHES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_answers_together_are_those_alone(start_here: Any, temperature: float, options: dict[str, str]) -> None:
    requests = [request(i, prompt=range(i + 1, 3 * i + 5), max_tokens=12, logprobs=0) for i in range(8)]
    sampling = SamplingParams(temperature=temperature, seed=3)
    requests = [msgspec.structs.replace(one, sampling=sampling) for one in requests]
    require_same(start_here(**options), start_here(max_batch_size="1"), requests)


def test_each_place_has_a_part_where_the_longest_sequences_fit(start_here: Any) -> None:
    assert start_here(max_batch_size="4")[0].stats().kv_blocks == 4 * 512
    assert start_here(max_batch_size="4", max_tokens_in_kv_cache="4096")[0].stats().kv_blocks == 4 * 512
    assert start_here(max_batch_size="4", max_tokens_in_kv_cache="1024")[0].stats().kv_blocks == 1024


def test_sequences_move_together_when_others_have_ended(start_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of places 0 to 5 the second, third and fifth end early; the first moves next to the others."""
    moved: list[tuple[int, int]] = []
    swap = LlamaModel.swap

    def noted_swap(model: LlamaModel, one: int, other: int) -> None:
        moved.append((one, other))
        swap(model, one, other)

    monkeypatch.setattr(LlamaModel, "swap", noted_swap)
    monkeypatch.setattr(engine_module, "NEXT_REQUEST_S", PATIENCE_S)
    requests = [
        request(i, prompt=range(i, 2 * i + 9), max_tokens=6 if i in (1, 2, 4) else 60, logprobs=0) for i in range(6)
    ]
    require_same(start_here(max_batch_size="6"), start_here(max_batch_size="1"), requests)
    assert moved == [(0, 4)]


def test_requests_that_come_together_after_a_rest_start_together(
    start_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "NEXT_REQUEST_S", PATIENCE_S)
    engine, recorder = start_here(max_batch_size="4")
    for _ in range(2):
        run_all(engine, recorder, [request(i, prompt=range(i, 20), max_tokens=3) for i in range(4)])
        assert [{delta.request_id for delta in step} for step in recorder.steps] == [{0, 1, 2, 3}] * 3
        recorder.forget(range(4))
        recorder.steps.clear()


def test_sequences_give_way_where_the_cells_run_out(start_here: Any) -> None:
    requests = [request(i, prompt=range(i, i + 60), max_tokens=200, logprobs=0) for i in range(6)]
    narrow = start_here(max_tokens_in_kv_cache="512")
    require_same(start_here(), narrow, requests)
    assert narrow[0].stats().kv_blocks == 512


def test_a_long_prompt_holds_up_nobody(start_here: Any) -> None:
    engine, recorder = start_here()
    engine.submit(request(1, max_tokens=300))
    recorder.wait_tokens(1)
    engine.submit(request(2, prompt=[9] * 400, max_tokens=1))
    recorder.wait_end(2)
    at = [n for n, step in enumerate(recorder.steps) if any(delta.request_id == 2 for delta in step)]
    before = sum(any(delta.request_id == 1 for delta in step) for step in recorder.steps[: at[0]])
    assert before >= 400 // 64
    engine.cancel(1)
    recorder.wait_end(1)


@pytest.mark.parametrize("options", CACHES, ids=str)
def test_prompts_that_begin_alike_are_computed_once(start_here: Any, options: dict[str, str]) -> None:
    engine, recorder = start_here(**options)
    prompt = [*range(200), 1]
    requests = [request(i, prompt=[*prompt, i], max_tokens=4) for i in range(4)]
    run_all(engine, recorder, requests)
    assert [recorder.deltas(i)[0].cached_tokens for i in range(4)] == [0, 201, 201, 201]
    engine.reset_prefix_cache()
    recorder.forget([0])
    run_all(engine, recorder, requests[:1])
    assert recorder.deltas(0)[-4].cached_tokens == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_follow_a_grammar(start_here: Any, temperature: float) -> None:
    engine, recorder = start_here()
    sampling = SamplingParams(temperature=temperature, seed=1)
    requests = [
        request(
            i, max_tokens=40, sampling=sampling, stop_token_ids=(EOS,), grammar=Grammar("regex", "(yes|no)[0-9]{3}")
        )
        for i in range(3)
    ]
    for i, tokens in enumerate(run_all(engine, recorder, requests)):
        text = tiny_tokenizer().decode(tokens)
        assert text[:-3] in ("yes", "no")
        assert text[-3:].isdigit()
        assert recorder.reason(i) == "stop"
    engine.submit(request(9, grammar=Grammar("regex", "(")))
    recorder.wait_end(9)
    assert recorder.ends[9].invalid


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "1")
    file = folder / "checkpoint" / "model.gguf"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)
    with pytest.raises(EngineLoadError, match=r"llama\.cpp .*model\.gguf: "):
        create_engine(folder, lambda _: None, {"num_threads": "1"})
    file.unlink()
    with pytest.raises(EngineLoadError, match=r"no model\.gguf"):
        create_engine(folder, lambda _: None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_batch_size": "300"}, "max_batch_size"),
        ({"max_tokens_in_kv_cache": "100"}, "max_tokens_in_kv_cache"),
        ({"attention": "sdpa"}, "ATTENTION"),
    ],
    ids=str,
)
def test_options_that_cannot_be_honoured(folder: Path, options: dict[str, str], named: str) -> None:
    with pytest.raises(EngineLoadError, match=named):
        create_engine(folder, lambda _: None, options)


def test_another_release_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "RELEASE", "2026.1.1")
    assert "2026.1.1" in library.problem()
    library.load.cache_clear()
    with pytest.raises(EngineLoadError, match="-e engines/llama_cpp"):
        library.load()
