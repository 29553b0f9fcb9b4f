"""Fast path of decoding steps: the inputs are those that transformers' own way writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, Qwen2Config
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestStatus

from openai_bls_transformers.runners import step_budget
from openai_bls_transformers.runners.runner import Sampling
from openai_bls_transformers.runners.sampler import Sampler
from openai_bls_transformers.runners.scheduler import (
    Scheduler,
    SequenceState,
    install_fast_path,
    supports_fast_path,
)
from openai_bls_transformers.runners.step_budget import StepBudget, StepTimes
from openai_bls_transformers.speculation.speculation import Speculator

pytestmark = pytest.mark.skipif(
    not hasattr(ContinuousBatchingConfig, "page_size"), reason="the short cut stands aside in older releases"
)

PAGE = 4
FIELDS = ("input_ids", "position_ids", "cumulative_seqlens_q", "logits_indices")
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
DRAWN = Sampling(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=7)


def settings() -> tuple[Any, Any]:
    config = Qwen2Config(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=16, vocab_size=64
    )
    config._attn_implementation = "openai_bls_flash_paged"
    batching = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=64,
        max_batch_tokens=32,
        max_requests_per_batch=8,
        max_blocks_per_request=8,
        max_memory_percent=0.5,
        use_cuda_graph=(False, False),
        allow_block_sharing=False,
    )
    return config, batching


def make_io(*, short: bool, speculator: Speculator | None = None) -> tuple[Any, Any, Scheduler]:
    config, batching = settings()
    cache = PagedAttentionCache(
        config, batching, "cpu", DistributedHelper(None, None, {}), torch.float32, model_supports_logits_to_keep=True
    )
    sampler = Sampler(on_gpu=False, speculator=speculator)
    io = ContinuousBatchingIOs(cache, config, batching, torch.device("cpu"), torch.float32, sampler)
    if short:
        assert supports_fast_path(cache)
        install_fast_path(SimpleNamespace(cache=cache, inputs_and_outputs=io))
    return io, sampler, Scheduler(cache, 0.0, 8)


def decoding(key: str, prompt: int, generated: int, limit: int = 50, sampling: Sampling = GREEDY) -> SequenceState:
    """A sequence whose next step feeds its last token."""
    state = SequenceState(
        request_id=key,
        initial_tokens=list(range(prompt)),
        max_new_tokens=limit,
        streaming=True,
        logit_processor_kwargs={"sampling": sampling},
    )
    state._status = RequestStatus.DECODING
    state.generated_tokens = list(range(40, 40 + generated))
    state.tokens_to_process = [state.generated_tokens[-1]]
    state.remaining_prefill_tokens = []
    state.position_offset = prompt + generated - 1
    return state


def add(scheduler: Scheduler, *states: SequenceState) -> None:
    for state in states:
        scheduler.active_requests[state.request_id] = state
        # What came before this step.
        past = SequenceState(request_id=state.request_id, initial_tokens=[])
        assert scheduler.cache.can_store_request_tokens(past, state.position_offset)


def inputs(io: Any, rows: int) -> dict[str, Any]:
    found = {name: getattr(io, name)[:rows].tolist() for name in FIELDS}
    found["cumulative_seqlens_q"] = io.cumulative_seqlens_q[: rows + 1].tolist()
    found["cumulative_seqlens_k"] = io.cumulative_seqlens_k["full_attention"][: rows + 1].tolist()
    found["args"] = io._bulk_input_tensor[io.static_inputs :, : io.num_request_in_batch].tolist()
    found["places"] = io.req_id_to_new_token_position
    found["sizes"] = (io.num_q_tokens, io.max_kv_read, io.num_request_in_batch, io.use_block_table, io.total_seqlen_q)
    found["keys"] = (io.total_seqlen_k, io.max_length_k)
    return found


def step(io: Any, sampler: Sampler, scheduled: list[Any], size: int) -> dict[str, Any]:
    io.prepare_batch_tensors(scheduled, sampler, True, size, 0, True)
    return inputs(io, size)


def test_inputs_are_the_same() -> None:
    results = []
    for short in (False, True):
        io, sampler, scheduler = make_io(short=short)
        states = [decoding("a", 3, 1), decoding("b", 7, 6, sampling=DRAWN), decoding("c", 1, 4)]
        add(scheduler, *states)
        found = []
        for _ in range(6):  # over the end of a page
            scheduled = [FutureRequestState(state, True, {}, 1) for state in states]
            assert all(scheduler.cache.can_store_request_tokens(state, 1) for state in states)
            found.append(step(io, sampler, scheduled, 4))
            tables = scheduler.cache.cache_allocators["full_attention"].block_table
            stride = scheduler.cache.cache_allocators["full_attention"].block_physical_stride // PAGE
            for i, state in enumerate(states):
                blocks = [block * stride for block in tables[state.request_id]]
                assert io.block_table[0, i, : len(blocks)].tolist() == blocks
                assert state.tokens_to_process != [state.generated_tokens[-1]]
        results.append(found)
        del states[0]  # rows move up
        scheduled = [FutureRequestState(state, True, {}, 1) for state in states]
        results[-1].append(step(io, sampler, scheduled, 2))
    assert results[0] == results[1]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("with_past", [False, True])
def test_inputs_of_mixed_steps_are_the_same(padded: bool, with_past: bool) -> None:
    """A sequence that decodes, a prompt that goes on and ends, and one that begins, twice in a row."""
    results = []
    for short in (False, True):
        io, sampler, scheduler = make_io(short=short)
        found = []
        for turn in range(2):
            states = [
                decoding(f"a{turn}", 7, 2, sampling=DRAWN),
                decoding(f"b{turn}", 5, 1),
                decoding(f"c{turn}", 1, 1),
            ]
            if not with_past:
                states = states[1:]
            for state, past, new in zip(states[-2:], (4 * with_past, 0), (6, 3), strict=True):
                state.position_offset, state.tokens_to_process = past, list(range(20, 20 + new))
            add(scheduler, *states)
            queries = [len(state.tokens_to_process) for state in states]
            scheduled = [
                FutureRequestState(state, i < len(states) - 1, {}, count)
                for i, (state, count) in enumerate(zip(states, queries, strict=True))
            ]
            for state, count in zip(states, queries, strict=True):
                assert scheduler.cache.can_store_request_tokens(state, count)
            size, keys = (16 if padded else sum(queries)), 20 * with_past
            io.prepare_batch_tensors(scheduled, sampler, False, size, keys, padded)
            found.append(inputs(io, len(states)))
            found[-1]["sequences"] = io.cumulative_seqlens_q[: (8 if padded else len(states)) + 1].tolist()
            found[-1]["tokens"] = [io.input_ids[:size].tolist(), io.position_ids[:size].tolist()]
            found[-1]["slots"] = [x[0, : size + keys].tolist() for x in (io.write_index_storage, io.read_index_storage)]
            found[-1]["true sizes"] = [io.true_write_sizes, io.true_read_sizes, io.max_length_q]
            found[-1]["offsets"] = [(state.position_offset, state.tokens_to_process) for state in states]
            for state in states:
                scheduler.finish_request(state.request_id)
        results.append(found)
    assert results[0] == results[1]


def test_a_page_that_is_replaced_in_place_is_noticed() -> None:
    io, sampler, scheduler = make_io(short=True)
    state = decoding("a", 6, 1)
    add(scheduler, state)
    scheduled = [FutureRequestState(state, True, {}, 1)]
    step(io, sampler, scheduled, 1)
    allocator = scheduler.cache.cache_allocators["full_attention"]
    allocator.block_table["a"][0] = 33
    step(io, sampler, scheduled, 1)
    assert io.block_table[0, 0, 0] == 33 * allocator.block_physical_stride // PAGE


def test_a_prompt_beside_others_is_cut_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, scheduler = make_io(short=True)
    times = StepTimes([(10, 0.1), (20, 0.2), (32, 0.4)], seconds_per_score=0.0)
    scheduler.step_budget = StepBudget(times, max_seconds=0.2)
    scheduler.add_waiting_request(SequenceState(request_id="b", initial_tokens=list(range(30))))
    assert scheduler.schedule_batch(32, 1000)[2] == 30  # alone
    scheduler.finish_request("b")
    add(scheduler, decoding("a", 3, 1))
    scheduler.add_waiting_request(SequenceState(request_id="c", initial_tokens=list(range(30))))
    monkeypatch.setattr(step_budget, "LEAST_PROMPT_TOKENS", 4)
    assert scheduler.schedule_batch(32, 1000)[2] == 20


def test_every_step_counts_for_long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_budget, "LEAST_PROMPT_TOKENS", 4)
    _, _, scheduler = make_io(short=True)
    # A token takes 2 ms, and the prompt 0.12 s.
    times = StepTimes([(count, count * 0.002) for count in range(4, 33, 4)], seconds_per_score=0.0)
    scheduler.step_budget = StepBudget(times, max_seconds=0.006)
    add(scheduler, decoding("a", 3, 1, limit=500))

    def tokens_with_prompt(key: str) -> int:
        scheduler.add_waiting_request(SequenceState(request_id=key, initial_tokens=list(range(60))))
        tokens = scheduler.schedule_batch(64, 1000)[2]
        scheduler.finish_request(key)
        return int(tokens)

    assert [tokens_with_prompt(f"b{turn}") for turn in range(4)] == [16, 16, 16, 8]
    for _ in range(120):
        assert len(scheduler.schedule_batch(64, 1000)[0]) == 1
    assert [tokens_with_prompt(f"c{turn}") for turn in range(2)] == [16, 8]


def test_without_step_times_prompts_have_few_tokens_beside_sequences_that_decode() -> None:
    _, _, scheduler = make_io(short=True)
    scheduler.prompt_tokens_beside = 6
    scheduler.add_waiting_request(SequenceState(request_id="a", initial_tokens=list(range(20))))
    scheduler.add_waiting_request(SequenceState(request_id="b", initial_tokens=list(range(10))))
    assert scheduler.schedule_batch(32, 1000)[2] == 30  # Nobody waits for the step.
    scheduler.finish_request("a")
    scheduler.finish_request("b")
    add(scheduler, decoding("c", 3, 1))
    add(scheduler, decoding("d", 3, 1))
    scheduler.add_waiting_request(SequenceState(request_id="e", initial_tokens=list(range(20))))
    assert scheduler.schedule_batch(32, 1000)[2] == 2 + 6


def test_short_prompts_overtake_a_long_one_for_a_while() -> None:
    _, _, scheduler = make_io(short=True)
    # A token takes a millisecond.
    scheduler.step_budget = StepBudget(StepTimes([(8, 0.008)], seconds_per_score=0.0), max_seconds=0.008)

    def prompt(key: str, tokens: int, created: float) -> SequenceState:
        state = SequenceState(request_id=key, initial_tokens=list(range(tokens)))
        state.created_time = created
        scheduler.add_waiting_request(state)
        return state

    prompt("long", 24, created=100.0)
    [first] = scheduler.schedule_batch(32, 1000)[0]
    assert (first.state.request_id, first.query_length) == ("long", 24)
    first.state.remaining_prefill_tokens = first.state.initial_tokens[8:]
    first.state.status = RequestStatus.PREFILLING
    prompt("short", 3, created=100.030)
    prompt("late", 3, created=100.045)
    reset = prompt("preempted", 5, created=120.0)
    reset._true_initial_tokens = 2
    scheduled, *_ = scheduler.schedule_batch(32, 1000)  # the 16 of the long prompt are due at 100.048
    # In one step no more than the largest that was measured.
    assert [(item.state.request_id, item.query_length) for item in scheduled] == [("preempted", 5), ("short", 3)]
    scheduler.finish_request("preempted")
    scheduler.finish_request("short")
    scheduled, *_ = scheduler.schedule_batch(32, 1000)
    assert [item.state.request_id for item in scheduled] == ["long"]


def test_without_a_budget_the_first_comes_first() -> None:
    _, _, scheduler = make_io(short=True)
    for key, tokens in (("long", 20), ("short", 3)):
        scheduler.add_waiting_request(SequenceState(request_id=key, initial_tokens=list(range(tokens))))
    scheduled, *_ = scheduler.schedule_batch(8, 1000)
    assert [item.state.request_id for item in scheduled] == ["long"]


def test_a_sequence_with_its_last_token_in_flight_sits_out() -> None:
    _, _, scheduler = make_io(short=True)
    ended = decoding("a", 3, 4, limit=4)
    going = decoding("b", 3, 3, limit=4)
    add(scheduler, ended, going)
    # The step in flight has taken the fourth token of `a`: its input was the third.
    scheduled, *_ = scheduler.schedule_batch(32, 1000)
    assert [item.state for item in scheduled] == [going]
    del scheduler.active_requests["b"]
    scheduled, *_ = scheduler.schedule_batch(32, 1000)
    assert [item.state for item in scheduled] == [ended]
