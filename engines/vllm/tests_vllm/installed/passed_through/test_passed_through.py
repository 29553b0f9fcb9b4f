"""What passes through to the real vLLM: parameters of a KV connector, priorities, and drafts by n-grams."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.asking import Answer, Asker
from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.loading import arguments
from openai_bls.transport.engine_process.source import StartedProcess
from openai_bls_vllm.record import VllmRecord
from tests.paths import DEMO
from tests_vllm.installed import cases
from tests_vllm.installed.conftest import LIMIT_S, SILENCE_S, Served
from tests_vllm.vllm_python import vllm_python

pytestmark = [pytest.mark.vllm_versions, pytest.mark.timeout(1800)]

CONNECTORS = Path(__file__).parent
NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def python_with_connectors(folder: Path) -> str:
    """An interpreter with vLLM that also finds the connector, as if its package were installed there."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(CONNECTORS))} exec {shlex.quote(vllm_python())} "$@"\n')
    program.chmod(0o755)
    return str(program)


@contextmanager
def served(folder: Path, python: str, max_batch_size: int, extra: dict[str, Any]) -> Iterator[Served]:
    """vLLM with the demo and further arguments, without a prefix cache."""
    shutil.copytree(DEMO, folder / "1" / "checkpoint")
    record = VllmRecord(version="0.32.0", extra_engine_args=extra)
    write_manifest(
        folder / "1",
        Manifest(
            engine="vllm",
            model_name="demo",
            max_model_len=2048,
            max_batch_size=max_batch_size,
            created=1,
            record=record.fields(),
        ),
    )
    asker = Asker()
    settings = EngineSettings(enable_kv_cache_reuse=False)
    source = StartedProcess(python, arguments(folder / "1", {"vllm_client": "core_client"}, settings), 0)
    engine = ProcessEngine(source, asker.on_step, SILENCE_S)
    asker.engine = engine
    try:
        yield Served(engine, asker, source, settings)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """vLLM with a KV connector, with a queue by priority, and with room for one sequence."""
    folder = tmp_path_factory.mktemp("connected")
    (folder / "left").mkdir()
    connector = {
        "kv_connector": "FolderConnector",
        "kv_connector_module_path": "folder_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"folder": str(folder / "left")},
    }
    extra = {"kv_transfer_config": connector, "scheduling_policy": "priority"}
    with served(folder, python_with_connectors(folder), 1, extra) as found:
        yield found


def one(vllm: Served, request: GenerationRequest) -> Answer:
    (answer,) = vllm.ask([request])
    assert answer.error is None
    return answer


def test_the_cache_of_a_prompt_is_left_and_taken(connected: Served) -> None:
    assert {"kv_transfer_params", "priority"} <= set(connected.engine.info.supported)
    prompt, other = cases.prompt(800, 400), cases.prompt(801, 400)
    plain = one(connected, cases.asked(prompt, 24))
    assert (plain.cached_tokens, plain.kv_transfer_params) == (0, None)
    left = [one(connected, cases.asked(ids, 1, kv_transfer_params={"leave": True})) for ids in (prompt, other)]
    assert left[0].tokens == plain.tokens[:1]
    assert [(answer.kv_transfer_params or {}).get("num_tokens") for answer in left] == [400, 400]
    taken, wrong = (
        one(connected, cases.asked(prompt, 24, kv_transfer_params=answer.kv_transfer_params)) for answer in left
    )
    size = connected.engine.stats().kv_block_size
    assert taken.cached_tokens == wrong.cached_tokens == 399 // size * size > 0
    assert taken.tokens == plain.tokens
    assert taken.kv_transfer_params is None
    # It is the connector's cache that is read: another prompt's is another context.
    assert wrong.tokens != plain.tokens


def test_a_better_priority_gets_its_first_token_before_an_earlier_request(connected: Served) -> None:
    order: list[int] = []

    def listen(deltas: Sequence[TokenDelta]) -> None:
        order.extend(delta.request_id for delta in deltas if delta.token_ids and delta.request_id not in order)
        connected.asker.on_step(deltas)

    connected.engine._on_step = listen
    asked = [(900, 600, 0), (901, 4, 5), (902, 4, 5), (903, 4, -5), (904, 4, 1)]
    answers = [
        connected.asker.submit(cases.asked(cases.prompt(first), tokens, priority=priority))
        for first, tokens, priority in asked
    ]
    ids = list(connected.asker._live)
    connected.asker.wait(LIMIT_S)
    assert [answer.reason for answer in answers] == ["length"] * 5
    # The first one runs when the others come; of two that are as urgent the earlier one is first.
    running, late, later, urgent, less_urgent = ids
    assert order == [running, urgent, less_urgent, late, later]


def test_drafts_by_ngrams_are_counted_and_change_nothing(embedded: Asker, tmp_path: Path) -> None:
    # Long answers, which come to repeat themselves.
    asked = [cases.asked(cases.prompt(820 + n), 160) for n in range(3)]
    with served(tmp_path, vllm_python(), 8, {"speculative_config": NGRAMS}) as vllm:
        found = vllm.ask(asked)
        version = tuple(map(int, vllm.engine.info.version.removeprefix("vllm ").split(".")[:2]))
    for answer, wanted in zip(found, embedded.ask(asked, LIMIT_S), strict=True):
        assert (answer.error, answer.tokens) == (None, wanted.tokens)
        assert 0 <= answer.num_accepted_tokens <= answer.num_draft_tokens
        assert answer.num_accepted_tokens < len(answer.tokens)
        # Before 0.29 vLLM does not tell.
        assert (answer.num_accepted_tokens > 0) == (version >= (0, 29))
