"""The self-test: what it takes for right, the wrong runners and the wrong weights that it finds, and its record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

from openai_bls.core.manifest import EngineLoadError, load_manifest, record
from openai_bls.engines.command_queue import CommandQueue
from openai_bls.engines.registry import create_engine
from openai_bls_transformers.model import attention_cpu
from openai_bls_transformers.record import EmbeddedRecord, SelfTestRecord
from openai_bls_transformers.runners import continuous_batching
from openai_bls_transformers.self_test import plain_pass, self_test
from openai_bls_transformers.self_test.plain_pass import Reference, Sample
from openai_bls_transformers.self_test.records import changed_answer
from openai_bls_transformers.self_test.self_test import difference
from tests.engine_contract.support import Recorder, change, change_record, request, run_all
from tests.waiting import until

Patch = pytest.MonkeyPatch
SAMPLE = Sample([1, 2], [[7, 7, 3], [3, 3, 7]] * 10, [[-0.5, -0.5, -1.5], [-0.1, -0.1, -3.0]] * 10)


def reference(*, own: float = -0.5, spread: float = 1.0) -> Reference:
    """A pass over SAMPLE that agrees with it, but for the first token if `own` says so."""
    rows = [list(row) for row in SAMPLE.logprobs]
    rows[0][0] = own
    return Reference(rows, [(7, -0.5), (3, -0.1)] * 10, [spread] * 20, [], [1.0] * 20)


@pytest.mark.parametrize(
    ("own", "spread", "dtype", "right"),
    [
        (-0.5, 1.0, "float32", True),
        (-0.501, 1.0, "float32", True),
        (-0.51, 1.0, "float32", False),  # though the likeliest token is the same
        (-0.51, 10.0, "float32", True),
        (-0.501, 0.1, "float32", False),  # flat logits
        (-9.0, 1.0, "bfloat16", True),  # one token of twenty, which went to another expert
    ],
)
def test_difference(own: float, spread: float, dtype: str, right: bool) -> None:
    found = difference([(SAMPLE, reference(own=own, spread=spread))], getattr(torch, dtype))
    assert (found is None) == right


def test_many_differences_are_no_rounding() -> None:
    worse = SAMPLE._replace(logprobs=[[value - 0.5 for value in row] for row in SAMPLE.logprobs])
    found = difference([(worse, reference())], torch.bfloat16)
    assert found is not None
    assert found.startswith("its answers are wrong: after a prompt of 2 tokens, token ")
    nans = SAMPLE._replace(logprobs=[[torch.nan] * 3] * 20)
    assert difference([(nans, reference())], torch.bfloat16) is not None
    long = [(SAMPLE, reference())] * 3 + [(SAMPLE._replace(logprobs=[[-2.0] * 3] * 20), reference())]
    assert difference(long, torch.bfloat16) is not None, "one of four prompts alone"
    silent = SAMPLE._replace(logprobs=[[]] * 20)
    assert difference([(silent, reference())], torch.float32) is None


def test_the_steps_of_a_number_format_are_no_differences() -> None:
    """Most of a vocabulary may be as good as equally likely, in a type whose steps are larger than its spread."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4096, max_position_embeddings=64, **sizes)).eval()
    with torch.no_grad():
        model.lm_head.weight[1:] *= 1e-3
        model.lm_head.weight[0] *= 40
    sample = Sample([2, 3], [[1], [4]], [[0.0], [0.0]])
    exact, coarse = (plain_pass.reference(model.to(dtype), sample) for dtype in (torch.float32, torch.bfloat16))
    assert all(now > 5 * before for now, before in zip(coarse.spreads, exact.spreads, strict=True))


def stored(token_ids: list[int], logprobs: list[float]) -> SelfTestRecord:
    return SelfTestRecord("cpu", "float32", [[1, 2]], [token_ids], [logprobs], versions={}, runner="r", attention="a")


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "same"),
    [
        ([7, 3], [-0.5, -0.1], True),
        ([7, 3], [-0.5, -0.2], False),
        ([7, 9], [-0.5, -0.1], False),
        ([3, 9], [-1.5, -9.0], False),  # 3 was far from the likeliest
        ([8, 9], [-0.505, -9.0], True),  # a tie, after which all may differ
    ],
)
def test_changed_answer(token_ids: list[int], logprobs: list[float], same: bool) -> None:
    now = Sample([1, 2], [[7, 7, 3, 8], [3, 3, 7, 8]], [[-0.5, -0.5, -1.5, -0.502], [-0.1, -0.1, -3.0, -4.0]])
    assert (changed_answer([now], stored(token_ids, logprobs), torch.float32) is None) == same


@pytest.mark.parametrize(("wrong", "same"), [(0, True), (1, True), (2, False)])
def test_one_of_three_answers_may_be_rounded_otherwise(wrong: int, same: bool) -> None:
    now = Sample([1, 2], [[7, 7, 3], [3, 3, 7]], [[-0.5, -0.5, -1.5], [-0.1, -0.1, -3.0]])
    found = msgspec.structs.replace(
        stored([], []), token_ids=[[7, 9]] * wrong + [[7, 3]] * (3 - wrong), logprobs=[[-0.5, -0.1]] * 3
    )
    assert (changed_answer([now] * 3, found, torch.bfloat16) is None) == same
    assert (changed_answer([now] * 3, found, torch.float32) is None) == (wrong == 0)


def blind(monkeypatch: Patch) -> None:
    """Attention that sees what comes later, and the neighbours."""
    right = attention_cpu._attention

    def wrong(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        if "cache" in kwargs:
            attention_mask = torch.zeros_like(attention_mask, dtype=query.dtype)
        return right(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setattr(attention_cpu, "_attention", wrong)


def shifted(monkeypatch: Patch) -> None:
    """Rotary positions that are one too high while decoding."""
    right = Qwen2Model.forward

    def wrong(self: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        if "cu_seq_lens_q" in kwargs and position_ids.shape[-1] < 6:
            position_ids = position_ids + 1
        return right(self, position_ids=position_ids, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", wrong)


def swapped(monkeypatch: Patch) -> None:
    """Two sequences of a batch get each other's tokens."""
    right = continuous_batching._Router.deliver_batch

    def wrong(self: Any, outputs: list[Any]) -> None:
        if len(outputs) > 1:
            one, other = outputs[:2]
            one.request_id, other.request_id = other.request_id, one.request_id
        right(self, outputs)
        if len(outputs) > 1:
            one.request_id, other.request_id = other.request_id, one.request_id

    monkeypatch.setattr(continuous_batching._Router, "deliver_batch", wrong)


def failing(monkeypatch: Patch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        if "cache" in kwargs:
            raise RuntimeError("shapes do not fit")
        return sdpa_attention_forward(*args, **kwargs)

    monkeypatch.setattr(attention_cpu, "_attention", fail)


def loaded(folder: Path, **overrides: str) -> Any:
    engine: Any = create_engine(folder, Recorder(), {"num_threads": "1"} | overrides)
    engine.close()
    return engine


def sentence(folder: Path, **overrides: str) -> str:
    with pytest.raises(EngineLoadError) as caught:
        loaded(folder, **overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("spoil", [blind, shifted, swapped, failing])
def test_wrong_runners(folder: Path, monkeypatch: Patch, spoil: Callable[[Patch], None]) -> None:
    """The next one is taken; where none is left, the load is refused."""
    change_record(folder, self_test=None)
    spoil(monkeypatch)
    why = (
        "it fails: the engine died: RuntimeError: shapes do not fit"
        if spoil is failing
        else "its answers are wrong: after a prompt of "
    )
    engine = loaded(folder)
    assert engine.self_test.runner == "dynamic_cache"
    (rejected,) = engine.rejected
    assert rejected.startswith("not continuous_batching with attention sdpa")
    assert why in rejected
    assert why in sentence(folder, runner="continuous_batching")


@pytest.mark.parametrize("fault", [TypeError("no argument 'x'"), SystemExit("the library gives up"), KeyError("y")])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_loop_that_ends_by_an_exception(folder: Path, monkeypatch: Patch, fault: BaseException, steps: int) -> None:
    """Out of transformers' own loop, before its first step or later: the next runner is taken, or the load ends."""
    change_record(folder, self_test=None)
    right = continuous_batching.ContinuousBatcher.run

    def end(self: Any) -> BaseException | None:
        before_step, left = self._manager.before_step, [steps]

        def counted() -> None:
            if not left[0]:
                raise fault
            left[0] -= 1
            before_step()

        self._manager.before_step = counted
        if not steps:
            raise fault
        return right(self)

    monkeypatch.setattr(continuous_batching.ContinuousBatcher, "run", end)
    why = f"the engine died: {type(fault).__name__}: "
    engine = loaded(folder)
    assert engine.self_test.runner == "dynamic_cache"
    assert why in engine.rejected[0]
    assert why in sentence(folder, runner="continuous_batching")


def weights(change: Callable[[torch.Tensor], torch.Tensor], name: str = "") -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        tensors = {key: change(value) if name in key else value for key, value in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})

    return spoil


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 4096):
        data[at] ^= 0xFF
    path.write_bytes(data)


WEIGHTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped bytes": (flip, ""),
    "one empty tensor": (weights(torch.zeros_like, "layers.1.self_attn.v_proj.weight"), ""),
    "all of them empty": (weights(torch.zeros_like), "finds all tokens equally likely, so its weights are empty"),
    "NaN": (weights(lambda t: t * torch.nan, "layers.0.mlp.down_proj"), "computes NaN or infinity in float32"),
}


@pytest.mark.parametrize("what", WEIGHTS)
def test_corrupt_weights_of_the_same_size(folder: Path, monkeypatch: Patch, what: str) -> None:
    path = folder / "checkpoint" / "model.safetensors"
    monkeypatch.setattr("openai_bls.core.manifest._SMALL_BYTES", 0)
    change(folder, files={path.name: record(path)})
    size = path.stat().st_size
    spoil, unproven = WEIGHTS[what]
    spoil(path)
    assert path.stat().st_size == size
    said = sentence(folder)
    assert "last self-test" in said
    assert "compare the files with `openai-bls verify`" in said
    assert "model.safetensors " in sentence(folder, verify_weights="true")
    if unproven:
        change_record(folder, self_test=None)
        assert unproven in sentence(folder)


def test_a_load_replays_the_record_where_it_holds(folder: Path, monkeypatch: Patch) -> None:
    found = EmbeddedRecord.of(load_manifest(folder)).self_test
    assert found is not None
    assert (found.device, found.dtype, found.runner, found.attention) == (
        "cpu",
        "float32",
        "continuous_batching",
        "sdpa",
    )
    whole: list[Any] = []
    find = self_test.find

    def count(*given: Any, **named: Any) -> Any:
        whole.append(given)
        return find(*given, **named)

    monkeypatch.setattr(self_test, "find", count)
    assert loaded(folder).self_test == found
    assert not whole
    different: dict[str, Any] = {"device": "NVIDIA H200 (9.0)", "versions": {}, "dtype": "bfloat16", "runner": "other"}
    for name, value in different.items():
        change_record(folder, self_test=msgspec.structs.replace(found, **{name: value}))
        assert loaded(folder).self_test == found
    change_record(folder, self_test=found)
    assert loaded(folder, attention="eager").self_test.attention == "eager"
    assert len(whole) == 5


def test_the_prompts_of_a_batch_share_their_first_step(folder: Path, monkeypatch: Patch) -> None:
    """Also where the engine's thread runs as soon as there is something for it."""
    put, deliver, steps = CommandQueue.put, continuous_batching._Router.deliver_batch, []

    def drained(queue: Any, *commands: Any) -> bool:
        taken = put(queue, *commands)
        until(lambda: not queue._commands)
        return taken

    def noted(self: Any, outputs: list[Any]) -> None:
        steps.append(len(outputs))
        deliver(self, outputs)

    monkeypatch.setattr(CommandQueue, "put", drained)
    monkeypatch.setattr(continuous_batching._Router, "deliver_batch", noted)
    change_record(folder, self_test=None)
    tested = loaded(folder).self_test
    assert steps[: self_test.NEW_TOKENS] == [4] * self_test.NEW_TOKENS
    assert len(tested.prompts) == 3, "of which some are recorded"


def test_a_slow_replay_is_cut_short(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(self_test, "REPLAY_SECONDS", 0.0)
    recorder = Recorder()
    engine = create_engine(folder, recorder, {"num_threads": "1"})
    run_all(engine, recorder, [request(1)])
    assert engine.stats().generated_tokens == 8
    engine.close()
    assert recorder.breaches == []


@pytest.mark.parametrize("max_model_len", [1, 2, 9])
def test_an_engine_for_little(folder: Path, max_model_len: int) -> None:
    change_record(folder, self_test=None)
    change(folder, max_model_len=max_model_len)
    tested = loaded(folder).self_test
    assert all(len(answer) == min(8, max_model_len - 1) for answer in tested.token_ids)
