"""Choice between vLLM's scheduler and the one with short passes."""

from __future__ import annotations

from typing import Any

from openai_bls_vllm.module import Vllm
from openai_bls_vllm.versions import NEWEST

SHORT_PASSES = "openai_bls_vllm.scheduling.scheduler.ShortPassScheduler"
"""Path of the class, by which the engine core's process finds it."""


def takes_short_passes(vllm: Vllm, config: Any) -> bool:
    """True if the model gains from short passes, and vLLM would take the scheduler that they are made of.

    A mixture of experts reads nearly all of its weights in each pass, a short one too. With several engine cores
    (data parallelism) vLLM reads from what waits whether all of them are busy.

    Args:
        vllm: the installed package.
        config: `VllmConfig`.
    """
    scheduler = config.scheduler_config
    return bool(
        vllm.version <= NEWEST
        and scheduler.get_scheduler_cls() is vllm.name("vllm.v1.core.sched.async_scheduler.AsyncScheduler")
        and scheduler.policy == "fcfs"
        and config.parallel_config.data_parallel_size == 1
        and not config.model_config.get_num_experts()
        and not config.model_config.is_hybrid
    )
