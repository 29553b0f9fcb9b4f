"""Objects of the installed vLLM, made from plain values."""

from __future__ import annotations

from typing import Any

from openai_bls_vllm.interface import Generation, LoraAdapter
from openai_bls_vllm.module import Vllm


class Objects:
    """Makes vLLM's objects for requests.

    Args:
        vllm: the installed package.
    """

    def __init__(self, vllm: Vllm) -> None:
        self._sampling = vllm.name("vllm.SamplingParams")
        self._pooling = vllm.name("vllm.PoolingParams")
        self._structured = vllm.name("vllm.sampling_params.StructuredOutputsParams")
        self._lora = vllm.name("vllm.lora.request.LoRARequest")
        self._delta = vllm.name("vllm.sampling_params.RequestOutputKind").DELTA

    def sampling_params(self, generation: Generation) -> Any:
        """`SamplingParams` of a request.

        Raises:
            ValueError: vLLM refuses a value; the message is a sentence.
        """
        values = {**generation.params, "output_kind": self._delta}
        if generation.structured_outputs is not None:
            values["structured_outputs"] = self._structured(**generation.structured_outputs)
        return self._sampling(**values)

    def pooling_params(self, generation: Generation) -> Any:
        """`PoolingParams` of a request."""
        return self._pooling(**generation.params)

    def lora_request(self, adapter: LoraAdapter | None) -> Any:
        """`LoRARequest` of an adapter; None for None."""
        if adapter is None:
            return None
        return self._lora(lora_name=adapter.key, lora_int_id=adapter.number, lora_path=adapter.path)
