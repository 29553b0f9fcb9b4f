"""Interface between the embedded engine and what generates for it, the runner.

There are two: `continuous_batching` and `dynamic_cache_runner`; `runner_choice` says which one a model gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from openai_bls.core.engine import EngineStats
from openai_bls.engines.kv_events.events import Event
from openai_bls_transformers.model.image_inputs import PromptImages
from openai_bls_transformers.sampling.logits_processors import HostLogitsProcessors
from openai_bls_transformers.speculation.drafter import Drafter, SpeculationConfig

NO_LOAD = EngineStats(running=0, waiting=0, kv_cache_usage=0.0, steps=0, generated_tokens=0)
"""Stats where there is no runner."""


class SequenceOutput(Protocol):
    """Output of a sequence after a step; valid only until the listener returns."""

    request_id: str
    generated_tokens: list[int]
    """All so far, stop token included; `not_finite.NOT_FINITE` may be the last."""
    error: str | None
    # `cached_tokens`, prompt tokens found in the prefix cache, and `scheduled_at`, `time.monotonic()` of the sequence's
    # first place in a step, where these are known.


BeforeStep = Callable[[], None]
"""Called before each step and, when idle, after each wake-up."""
OnOutputs = Callable[[Sequence[SequenceOutput]], None]
"""Called with a step's outputs, or with failures."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchingConfig:
    """Sizes and switches."""

    max_batch_size: int
    max_num_tokens: int
    """Tokens of one forward pass."""
    page_size: int
    """Tokens per page of the KV cache, the unit in which prefixes are shared."""
    max_tokens_in_kv_cache: int
    """Tokens; 0 is as many as fit into `free_memory_fraction`."""
    free_memory_fraction: float
    prefix_sharing: bool
    max_request_tokens: int
    """Tokens of prompt and output of one sequence together."""
    shared_steps: bool = True
    """Sequences may share forward passes."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """`fp8` with a paged attention only."""
    paged: bool = False
    """The model's attention reads the cache by page tables and slot lists (`gpu.paged_attention`)."""
    max_step_seconds: float = 0.0
    """Most seconds of a step that takes in prompts while sequences decode, where steps are measured; 0 is no limit."""
    cuda_graphs: bool = False
    async_batching: bool = False
    """Prepare a step while the one before it runs; on a GPU only."""
    speculation: SpeculationConfig | None = None
    """Drafts; None is off."""
    images: bool = False
    """Prompts may hold images."""
    kv_events: bool = False
    """Keep the events of the prefix cache, for `take_kv_events`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one sequence."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    processors: HostLogitsProcessors | None = None
    """The sequence's logits processors, if it has any."""
    lora_slot: int = 0
    """The slot of its adapter; 0 is the base model."""
    drafter: Drafter | None = None
    """The sequence's drafter, if the engine speculates."""

    @property
    def row(self) -> tuple[float, float, float]:
        """The float parameters in the order of the argument rows."""
        return (self.temperature, self.top_p, self.min_p)


class Runner(Protocol):
    """Generates for many sequences at once on one thread, which is the caller of `run`.

    Only `wake`, `stop` and `stats` may be used from other threads; `add`, `cancel` and the
    reset of the prefix cache belong into `before_step`.
    """

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache holds."""

    def stats(self) -> EngineStats:
        """The load and the counts so far, but for the tokens that were generated: a rough look from any thread."""

    def add(
        self,
        key: str,
        prompt_token_ids: list[int],
        max_tokens: int,
        stop_token_ids: Sequence[int],
        sampling: Sampling,
        images: PromptImages | None = None,
    ) -> None:
        """Queue a sequence under a key never used before.

        Args:
            key: key of the sequence.
            prompt_token_ids: token ids of the prompt, each image expanded.
            max_tokens: maximum of new tokens.
            stop_token_ids: tokens that end the sequence.
            sampling: sampling parameters.
            images: images of the prompt; None without any.
        """

    def cancel(self, key: str) -> None:
        """Drop a sequence before the next step."""

    def reset_prefix_cache(self) -> bool:
        """Forget cached prompts between two steps; False if live sequences hold some of them.

        Raises:
            PrefixCacheError: it cannot.
        """

    def take_kv_events(self, adapter_name: Callable[[int], str]) -> list[Event]:
        """Events of the prefix cache since the last call, between two steps; none unless the configuration asks for it.

        Args:
            adapter_name: gives the name of the adapter with a number.
        """

    def wake(self) -> None:
        """End an idle wait."""

    def run(self) -> BaseException | None:
        """Generate until `stop`; returns the error that ended it earlier, if one did.

        After an error every live sequence is reported as failed through `on_outputs` before it returns.
        """

    def stop(self) -> None:
        """Make `run` return after the current step."""

    def free(self) -> None:
        """Let go of the KV cache and the model; only after `run` has returned."""
