"""Choice of the scheduler, over the attributes of `VllmConfig` that it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from openai_bls_vllm.scheduling.choice import takes_short_passes
from openai_bls_vllm.versions import NEWEST, Version

AsyncScheduler = type("AsyncScheduler", (), {})


def chosen(
    *,
    version: Version = NEWEST,
    own: type = AsyncScheduler,
    policy: str = "fcfs",
    data_parallel_size: int = 1,
    experts: int = 0,
    is_hybrid: bool = False,
) -> bool:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(get_scheduler_cls=lambda: own, policy=policy),
        parallel_config=SimpleNamespace(data_parallel_size=data_parallel_size),
        model_config=SimpleNamespace(get_num_experts=lambda: experts, is_hybrid=is_hybrid),
    )
    vllm: Any = SimpleNamespace(version=version, name=lambda path: AsyncScheduler)
    return takes_short_passes(vllm, config)


def test_a_dense_model_on_one_engine_core_has_short_passes() -> None:
    assert chosen()


@pytest.mark.parametrize(
    "unlike",
    [
        {"version": Version(NEWEST.major, NEWEST.minor + 1)},
        {"own": type("Scheduler", (), {})},
        {"policy": "priority"},
        {"data_parallel_size": 2},
        {"experts": 8},
        {"is_hybrid": True},
    ],
    ids=str,
)
def test_all_others_have_vllms_own_passes(unlike: dict[str, Any]) -> None:
    assert not chosen(**unlike)
