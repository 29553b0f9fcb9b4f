"""The fake's habits, which the engine's and the builder's tests rely on."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.unit.engines.tensorrt_llm.fake_support import CHECKPOINT, PATIENCE_S, VERSIONS, environment, on_loop, patched

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


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_importing_is_cheap() -> None:
    done = run("import sys, tensorrt_llm; print('torch' in sys.modules, 'transformers' in sys.modules)")
    assert done.stdout.splitlines() == ["[TensorRT-LLM] TensorRT-LLM version: 1.2.1", "False False"]


@pytest.mark.parametrize("version", VERSIONS)
def test_version(version: str) -> None:
    with patched(environment(version)):
        assert importlib.import_module("tensorrt_llm").__version__ == version


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


def test_end_token_is_kept_back_by_engines_only(scripted: Path) -> None:
    for flow, tokens in (("tensorrt", [5, 6, 7]), ("pytorch", [5, 6, 7, END])):
        with llm_class(flow)(str(scripted), skip_tokenizer_init=True) as llm:
            (steps,) = stream(llm, params())
            assert steps[-1] == (tokens, "stop")
            assert steps[0] == ([5], None)


def test_length_and_ignored_end(scripted: Path) -> None:
    with llm_class("pytorch")(str(scripted), skip_tokenizer_init=True) as llm:
        short, endless = stream(llm, params(max_tokens=2), params(ignore_eos=True, max_tokens=5))
        assert short[-1] == ([5, 6], "length")
        assert endless[-1] == ([5, 6, 7, 5, 6], "length")


def test_stop_token_is_cut_off_at_the_end(scripted: Path) -> None:
    with llm_class("tensorrt")(str(scripted), skip_tokenizer_init=True) as llm:
        (steps,) = stream(llm, params(stop_token_ids=[6]))
        assert steps == [([5], None), ([5], "stop")]


def test_stop_token_that_was_shown_before(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TENSORRT_LLM_LATE_FINAL", "1")
    with llm_class("tensorrt")(str(scripted), skip_tokenizer_init=True) as llm:
        (steps,) = stream(llm, params(stop_token_ids=[6]))
        assert steps == [([5], None), ([5, 6], None), ([5], "stop")]


def test_several_tokens_a_step(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TENSORRT_LLM_STEP_TOKENS", "2")
    with llm_class("tensorrt")(str(scripted), skip_tokenizer_init=True) as llm:
        (steps,) = stream(llm, params())
        assert [tokens for tokens, _ in steps] == [[5, 6], [5, 6, 7]]


def test_min_tokens_holds_back_the_end_token_only(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TENSORRT_LLM_TOKENS", "5")
    with llm_class("tensorrt")(str(scripted), skip_tokenizer_init=True) as llm:
        held, stopped = stream(llm, params(min_tokens=4), params(min_tokens=4, stop_token_ids=[5]))
        assert len(held[-1][0]) >= 4
        assert stopped[-1] == ([], "stop")


def test_diffs_are_stale_for_several_outputs(scripted: Path) -> None:
    async def read(llm: Any) -> list[list[int]]:
        output = llm.generate_async([1, 2], params(n=2, top_k=5, max_tokens=2), streaming=True)
        shown: list[list[int]] = [[], []]
        async for yielded in output:
            for index, completion in enumerate(yielded.outputs):
                shown[index] += completion.token_ids_diff
        return shown

    with llm_class("pytorch")(str(scripted), skip_tokenizer_init=True) as llm:
        shown = on_loop(read(llm))
        # Two tokens each, some of them told more than once.
        assert sum(map(len, shown)) > 4


def test_abort(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Or all tokens may be there before it is aborted.
    monkeypatch.setenv("FAKE_TENSORRT_LLM_STEP_DELAY_MS", "100")

    async def read(llm: Any) -> tuple[str | None, bool]:
        output = llm.generate_async([1, 2], params(ignore_eos=True, max_tokens=50), streaming=True)
        await anext(output)
        output.abort()
        async for _ in output:
            pass
        return output.outputs[0].finish_reason, output.finished

    with llm_class("pytorch")(str(scripted), skip_tokenizer_init=True) as llm:
        assert on_loop(read(llm)) == ("cancelled", True)


def test_greedy_gives_one(scripted: Path) -> None:
    with pytest.raises(ValueError, match="Greedy decoding"):
        params(n=2)
    assert params(n=2, temperature=0.5).best_of == 2


def test_temperature_alone_is_greedy_before_12(tmp_path: Path) -> None:
    with patched(environment("1.1.0")), pytest.raises(ValueError, match="Greedy decoding"):
        params(n=2, temperature=0.5)


def test_end_id_is_needed_without_a_tokenizer(scripted: Path) -> None:
    with (
        llm_class("pytorch")(str(scripted), skip_tokenizer_init=True) as llm,
        pytest.raises(ValueError, match="end_id"),
    ):
        llm.generate_async([1], params(end_id=None))


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


def test_an_engine_runs_without_its_checkpoint(scripted: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    saved = tmp_path_factory.mktemp("engine")
    (scripted / "tokenizer_config.json").write_text("{}")
    (scripted / "chat_template.jinja").write_text("")
    llm = llm_class("tensorrt")(str(scripted), skip_tokenizer_init=True, tensor_parallel_size=2)
    llm.save(str(saved))
    llm.shutdown()
    for path in scripted.iterdir():
        path.unlink()
    assert {path.name for path in saved.iterdir()} == {
        "config.json",
        "rank0.engine",
        "rank1.engine",
        "tokenizer_config.json",
    }
    assert {"build_config", "pretrained_config"} <= set(json.loads((saved / "config.json").read_text()))
    with llm_class("tensorrt")(str(saved), skip_tokenizer_init=True) as engine:
        assert stream(engine, params())[0][-1] == ([5, 6, 7], "stop")
    with pytest.raises(ValueError, match="Unrecognized model"):
        llm_class("pytorch")(str(saved), skip_tokenizer_init=True)


def test_ranks_cannot_be_spawned_inside_an_mpi_job(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="OMPI_COMM_WORLD_SIZE"):
        llm_class("pytorch")(str(scripted), skip_tokenizer_init=True, tensor_parallel_size=2)


def test_a_process_ends_only_after_shutdown(tmp_path: Path) -> None:
    small_checkpoint(tmp_path)
    code = f"""
        import sys, threading, time
        from tensorrt_llm import LLM
        llm = LLM({str(tmp_path)!r}, skip_tokenizer_init=True)
        print([thread.daemon for thread in threading.enumerate() if thread.name == "fake-tensorrt-llm"])
        llm.shutdown()
        print([thread.name for thread in threading.enumerate() if thread.name == "fake-tensorrt-llm"])
    """
    done = run(code, tokens="5")
    assert done.stdout.splitlines()[1:] == ["[False]", "[]"]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("build:out-of-memory", "OutOfMemoryError", "CUDA out of memory. Tried to allocate"),
        ("build:tensorrt-out-of-memory", "AssertionError", "Engine building failed"),
        ("build:architecture", "NotImplementedError", "architecture Qwen2ForCausalLM is not supported in TRT-LLM yet"),
        ("build:missing-package", "ModuleNotFoundError", "No module named 'modelopt'"),
        ("build:disk", "OSError", "No space left on device"),
        ("save:disk", "OSError", "No space left on device"),
        ("load:out-of-memory", "RuntimeError", "CUDA error: out of memory"),
        ("build:anything else", "RuntimeError", "anything else"),
    ],
)
def test_failures(scripted: Path, tmp_path_factory: pytest.TempPathFactory, what: str, kind: str, text: str) -> None:
    saved = tmp_path_factory.mktemp("saved")
    flag = tmp_path_factory.mktemp("flag") / "fail"
    flag.write_text(what)

    def build() -> None:
        with llm_class("tensorrt")(str(scripted), skip_tokenizer_init=True) as llm:
            llm.save(str(saved))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_TENSORRT_LLM_FAIL_FILE", str(flag))
        with pytest.raises(Exception, match=text) as caught:
            build()
        assert kind in [found.__name__ for found in type(caught.value).__mro__]
        flag.unlink()
        build()


def test_crashes(tmp_path: Path) -> None:
    small_checkpoint(tmp_path)
    code = f"""
        from tensorrt_llm._tensorrt_engine import LLM
        LLM({str(tmp_path)!r}, skip_tokenizer_init=True)
    """
    assert run(code, tokens="5", fail="build:crash").returncode == 134
    assert run(code, tokens="5", fail="build:kill").returncode == -9
    assert "No module named 'tensorrt_llm'" in run(code, fail="import:missing").stderr


def test_failure_while_serving(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with llm_class("pytorch")(str(scripted), skip_tokenizer_init=True) as llm:
        monkeypatch.setenv("FAKE_TENSORRT_LLM_FAIL", "serve:out-of-memory")
        with pytest.raises(RuntimeError, match="out of memory"):
            stream(llm, params())
        monkeypatch.setenv("FAKE_TENSORRT_LLM_FAIL", "")
        assert stream(llm, params())[0][-1][1] == "stop"


def test_noise_of_a_build(tmp_path: Path) -> None:
    small_checkpoint(tmp_path)
    done = run(
        f"""
        from tensorrt_llm._tensorrt_engine import LLM
        LLM({str(tmp_path)!r}, skip_tokenizer_init=True).shutdown()
        """,
        tokens="5",
    )
    assert "[TRT-LLM] [I] Total time of building Unnamed Network 0" in done.stdout
    assert "[TensorRT-LLM][INFO] Engine version 1.2.1 found" in done.stdout
    assert "Loading Model: [2/2]\tBuilding TRT-LLM engine" in done.stderr


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
        request = params(end_id=3067, max_tokens=6, ignore_eos=True, logprobs=3)
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
            # Until all is there, without a turn of the loop.
            while not all(output._responses and output._responses[-1].is_final for output in outputs):
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


@pytest.mark.parametrize(("version", "ends"), [("0.20.0", False), ("1.0.0", True), ("1.2.1", True)])
def test_a_refused_request(version: str, ends: bool, tmp_path: Path) -> None:
    flow = "tensorrt" if version == "0.20.0" else "pytorch"
    with patched(environment(version, tokens="5", fail="submit:no room")):
        package = importlib.import_module("tensorrt_llm")
        with package.LLM(str(small_checkpoint(tmp_path)), skip_tokenizer_init=True) as llm:
            assert llm._flow == flow
            with pytest.raises(RuntimeError, match="no room") as raised:
                stream(llm, params())
            assert type(raised.value).__name__ == "RequestError"
            assert llm._executor.is_shutdown() == ends
