"""The `Engine` contract, held against vLLM; tests/unit/engines has it for the other engines.

Left out are the tests that close the engine, which serves all tests here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_contract import support
from tests.engine_contract.support import Recorder
from tests.unit.engines import test_engine_conformance as contract
from tests_vllm.installed.conftest import LIMIT_S, Served

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def started(vllm: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[contract.Started]:
    monkeypatch.setattr(support, "PATIENCE_S", LIMIT_S)
    recorder = Recorder()
    vllm.engine._on_step = recorder
    yield vllm.engine, recorder
    assert recorder.breaches == []


test_length_is_exact = contract.test_length_is_exact
test_more_requests_than_the_batch_holds = contract.test_more_requests_than_the_batch_holds
test_one_thread_calls_the_listener = contract.test_one_thread_calls_the_listener
test_cancel_while_running = contract.test_cancel_while_running
test_cancel_before_the_first_step = contract.test_cancel_before_the_first_step
test_an_id_is_free_again_after_its_end = contract.test_an_id_is_free_again_after_its_end
test_a_live_id_has_one_end = contract.test_a_live_id_has_one_end
test_the_first_of_several_stop_tokens_ends_it = contract.test_the_first_of_several_stop_tokens_ends_it
test_stop_word_is_delivered = contract.test_stop_word_is_delivered
test_invalid_requests_name_the_field = contract.test_invalid_requests_name_the_field
test_logprobs = contract.test_logprobs
test_logprobs_of_a_stopped_sequence = contract.test_logprobs_of_a_stopped_sequence
test_nothing_to_sample = contract.test_nothing_to_sample
test_min_tokens = contract.test_min_tokens
test_races_of_submit_and_cancel = contract.test_races_of_submit_and_cancel
test_a_listener_that_raises_does_no_harm = contract.test_a_listener_that_raises_does_no_harm
