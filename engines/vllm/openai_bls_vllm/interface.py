"""Interface to vLLM as the engine sees it: plain values in, a few attributes of its outputs out.

Nothing here imports vllm. `async_llm` and `core_client` are the two clients; the engine sees both through these types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from openai_bls.core.media import MediaPrompt


class LoraAdapter(msgspec.Struct, frozen=True):
    """A LoRA adapter as vLLM sees it."""

    name: str
    """Name for requests."""
    path: str
    """A PEFT directory."""
    number: int
    """`LoRARequest.lora_int_id`: the same for the same name and contents."""
    key: str
    """`LoRARequest.lora_name`, by which vLLM's prefix cache tells prompts of different adapters apart."""


class Generation(msgspec.Struct, frozen=True):
    """One request in vLLM's terms."""

    request_id: str
    """Unique for the life of the engine."""
    prompt_token_ids: list[int]
    params: dict[str, Any]
    """Fields of vLLM's `SamplingParams`."""
    lora: LoraAdapter | None = None
    structured_outputs: dict[str, Any] | None = None
    """Fields of vLLM's `StructuredOutputsParams`; None is no grammar."""
    media: MediaPrompt | None = None
    """Images of the prompt, whose places `prompt_token_ids` has expanded; None if it is text alone."""
    priority: int = 0
    """Place in vLLM's queue, where it has one by priority."""
    pooling: bool = False
    """Pool the prompt: `params` are fields of vLLM's `PoolingParams`."""
    owner: str = ""
    """Name of the API key whose turn it is when the images are processed."""


class Output(Protocol):
    """New output of one request: attributes of `EngineCoreOutput` that every version has."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any
    """`LogprobsLists`: token ids and log-probabilities of shape [tokens, 1 + k], the sampled token's first; or None."""
    new_prompt_logprobs_tensors: Any
    """`LogprobsTensors` of the prompt from its second token on, of the same shape; or None."""
    finish_reason: Any
    """`stop`, `length`, `abort`, `error` or `repetition` as its text; None while the request goes on."""
    stop_reason: Any
    kv_transfer_params: dict[str, Any] | None
    """What another vLLM needs to take the request's KV cache, with the last output; or None."""
    pooling_output: Any
    """Tensor of what a prompt was pooled into; None where vLLM generates."""


class Listeners(NamedTuple):
    """What a client calls, on the event loop."""

    outputs: Callable[[Sequence[Any], Any], None]
    """Takes the outputs (`Output`) of a step and vLLM's `SchedulerStats`, or None."""
    refused: Callable[[str, str], None]
    """Takes a request id and one sentence when vLLM refuses the request."""
    death: Callable[[BaseException], None]
    """Takes the reason when vLLM's engine core has died; further calls are ignored."""


class Client(Protocol):
    """A loaded model in vLLM. All methods are called on the event loop that opened it; those that return at once may
    finish their work later, in the order of the calls."""

    name: str
    """Name of the client in the log."""

    def start(self, listeners: Listeners) -> None:
        """Begin to read outputs."""

    def add(self, generations: Sequence[Generation]) -> None:
        """Start requests."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests; ids that are not live are ignored."""

    async def add_lora(self, adapter: LoraAdapter) -> bool:
        """Load an adapter's weights.

        Raises:
            Exception: vLLM's own.
        """

    async def remove_lora(self, number: int) -> bool:
        """Drop an adapter's weights."""

    async def supported_tasks(self) -> tuple[str, ...]:
        """What the model does, in vLLM's words (`generate`, `embed`, `classify`)."""

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prompts; False if running sequences hold some."""

    def shutdown(self) -> None:
        """End vLLM's processes. Blocks for seconds."""
