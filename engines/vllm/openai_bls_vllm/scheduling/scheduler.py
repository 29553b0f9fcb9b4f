"""Scheduler of vLLM's engine core with short passes. Imported in the engine core's process, which has vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from openai_bls_vllm.scheduling.pass_size import pass_size, step_tokens

_WEIGHTS = (".safetensors", ".bin", ".pt")


class ShortPassScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's own scheduler, which is told before each step how many tokens that may take."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most: int = self.max_num_scheduled_tokens
        parallel = self.vllm_config.parallel_config
        gpus = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        self._pass_size = pass_size(_weight_bytes(Path(self.vllm_config.model_config.model)) // gpus)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """The next step."""
        self.max_num_scheduled_tokens = self._step_tokens()
        return super().schedule(*args, **kwargs)

    def _step_tokens(self) -> int:
        # A prompt that is read in parts is a long one.
        if not self.waiting or any(each.num_computed_tokens < each.num_prompt_tokens for each in self.running):
            return self._most
        running = len(self.running) * (1 + self.num_spec_tokens)
        return step_tokens((each.num_tokens for each in self.waiting), running, self._pass_size, self._most)


def _weight_bytes(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.iterdir() if path.name.endswith(_WEIGHTS))
