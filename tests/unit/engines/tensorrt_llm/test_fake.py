"""The fake's habits, which the engine's and the builder's tests rely on."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.unit.engines.tensorrt_llm.fake_support import CHECKPOINT, environment, on_loop, patched

END = 9
PAUSE = threading.Event()
"""Never set."""


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Path]:
    """The fake in this process, answering 5, 6, 7; gives a checkpoint without weights."""
    with patched(environment(tokens="5,6,7")):
        yield small_checkpoint(tmp_path)


def small_checkpoint(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["Qwen2ForCausalLM"], "vocab_size": 20, "max_position_embeddings": 64} | config)
    )
    return folder


def llm_class(flow: str) -> Any:
    if flow == "tensorrt":
        return importlib.import_module("tensorrt_llm._tensorrt_engine").LLM
    return importlib.import_module("tensorrt_llm").LLM


def params(**values: Any) -> Any:
    return importlib.import_module("tensorrt_llm").SamplingParams(**{"end_id": END, "max_tokens": 8} | values)


def stream(llm: Any, *requests: Any, prompt: tuple[int, ...] = (1, 2)) -> list[list[tuple[list[int], str | None]]]:
    """What each request's stream shows of its first output, step by step."""

    async def read(request: Any) -> list[tuple[list[int], str | None]]:
        steps = []
        output = llm.generate_async({"prompt_token_ids": list(prompt)}, request, streaming=True)
        async for yielded in output:
            assert yielded is output
            first = yielded.outputs[0]
            steps.append((list(first.token_ids), first.finish_reason))
        return steps

    async def all_of_them() -> list[list[tuple[list[int], str | None]]]:
        return list(await asyncio.gather(*map(read, requests)))

    return on_loop(all_of_them())


def test_flows_of_versions(tmp_path: Path) -> None:
    small_checkpoint(tmp_path)
    with patched(environment("0.20.0")):
        package = importlib.import_module("tensorrt_llm")
        assert package.LLM._flow == "tensorrt"
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("tensorrt_llm._tensorrt_engine")
    with patched(environment("1.3.0rc21")), pytest.raises(ModuleNotFoundError):
        importlib.import_module("tensorrt_llm._tensorrt_engine")
    with patched(environment("1.3.0rc20")):
        assert llm_class("tensorrt")._flow == "tensorrt"


@pytest.mark.parametrize(
    ("variables", "asked", "steps"),
    [
        ({}, {"stop_token_ids": [6]}, [([5], None), ([5], "stop")]),
        # A stop token that was shown before is cut off at the end.
        ({"LATE_FINAL": "1"}, {"stop_token_ids": [6]}, [([5], None), ([5, 6], None), ([5], "stop")]),
        ({"STEP_TOKENS": "2"}, {}, [([5, 6], None), ([5, 6, 7], "stop")]),
        # `min_tokens` holds back the end token only.
        ({"TOKENS": "5"}, {"min_tokens": 4, "stop_token_ids": [5]}, [([], "stop")]),
    ],
)
def test_steps_of_an_engine(
    scripted: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], asked: dict[str, Any], steps: Any
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"FAKE_TENSORRT_LLM_{name}", value)
    with llm_class("tensorrt")(str(scripted), skip_tokenizer_init=True) as llm:
        assert stream(llm, params(**asked)) == [steps]


def test_unknown_arguments_are_refused(scripted: Path) -> None:
    with pytest.raises(ValueError, match="invalid argument: wrong"):
        llm_class("pytorch")(str(scripted), wrong=1)
    with pytest.raises(ValueError, match="specific to TensorRT backend"):
        llm_class("pytorch")(str(scripted), workspace="/tmp")
    llmapi = importlib.import_module("tensorrt_llm.llmapi")
    with pytest.raises(ValueError, match="wrong"):
        llmapi.KvCacheConfig(wrong=1)
    with pytest.raises(TypeError, match="wrong"):
        params(wrong=1)


def test_log_probabilities_need_gathered_logits(scripted: Path) -> None:
    build_config = importlib.import_module("tensorrt_llm.llmapi").BuildConfig
    for gathered, passed in ((False, True), (True, False)):
        config = build_config(max_seq_len=32, gather_generation_logits=gathered)
        llm = llm_class("tensorrt")(
            str(scripted), skip_tokenizer_init=True, build_config=config, gather_generation_logits=passed
        )
        with llm, pytest.raises(ValueError, match="gather_generation_logits"):
            llm.generate_async([1], params(logprobs=1))


def test_ranks_cannot_be_spawned_inside_an_mpi_job(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="OMPI_COMM_WORLD_SIZE"):
        llm_class("pytorch")(str(scripted), skip_tokenizer_init=True, tensor_parallel_size=2)


def test_the_model_is_the_checkpoint_s() -> None:
    """Greedy tokens and log-probabilities of the demo checkpoint are those that transformers gives."""
    import torch
    import transformers

    prompt = [10, 20, 30, 40]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    with torch.inference_mode():
        scores = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None)[0, 4:]

    async def ask(llm: Any) -> Any:
        request = params(end_id=2, max_tokens=6, ignore_eos=True, logprobs=3)
        return await llm.generate_async(prompt, request, streaming=False)

    with patched(environment()), llm_class("pytorch")(str(CHECKPOINT), skip_tokenizer_init=True) as llm:
        first = on_loop(ask(llm)).outputs[0]
        assert first.token_ids == expected.tolist()
        assert {token: found.logprob for token, found in first.logprobs[0].items()} == pytest.approx(
            {int(token): float(scores[token]) for token in scores.topk(3).indices}, abs=1e-4
        )


def test_a_step_is_handed_over_at_once(scripted: Path) -> None:
    """What it brings to several requests wakes the event loop once, and responses are taken without a turn of it."""
    wakes: list[int] = []
    turns: list[Any] = []

    async def read(llm: Any) -> None:
        loop = asyncio.get_running_loop()
        with mock.patch.object(loop, "call_soon_threadsafe", side_effect=loop.call_soon_threadsafe) as woken:
            outputs = [llm.generate_async({"prompt_token_ids": [1]}, params(), streaming=True) for _ in range(3)]
            # Until all is there and told, without a turn of the loop.
            while woken.call_count < 4 or not all(o._responses and o._responses[-1].is_final for o in outputs):
                PAUSE.wait(0.001)
        wakes.append(woken.call_count)
        steps = 0
        async for _ in outputs[0]:
            steps += 1
            if steps == 1:
                loop.call_soon(turns.append, None)
        assert steps == 4
        assert turns == []

    with llm_class("pytorch")(str(scripted), skip_tokenizer_init=True) as llm:
        on_loop(read(llm))
    # As many as steps; not one for each of 3 requests, unless they ran one after the other.
    assert 4 <= wakes[0] <= 12


def test_what_a_loop_that_has_stopped_leaves_behind(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Or all tokens may be there before the loop stops.
    monkeypatch.setenv("FAKE_TENSORRT_LLM_STEP_DELAY_MS", "100")
    llm = llm_class("pytorch")(str(scripted), skip_tokenizer_init=True)

    async def leave() -> Any:
        return llm.generate_async({"prompt_token_ids": [1]}, params(max_tokens=60, ignore_eos=True), streaming=True)

    output = asyncio.run(leave())
    while llm._executor._error_queue.empty():
        PAUSE.wait(0.001)
    assert not output.finished
    with pytest.raises(Exception, match=r"^$") as raised:
        llm.shutdown()
    assert type(raised.value).__name__ == "EventLoopShutdownError"
