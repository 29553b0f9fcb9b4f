"""Random walks through grammars by the real vLLM's `guidance` backend; run by an interpreter that has vLLM.

::

    PYTHONPATH=.:engines/vllm <vllm's python> guidance_walks.py TOKENIZER VOCAB_SIZE < cases.json > walks.json

A case is `{"kind", "text", "stop_token_ids", "seed", "preferred"}`: `preferred` has tokens that lead to an end. Its
answer is `{"token_ids", "masks"}`, tokens that the masks allow and a mask (hexadecimal) before each and after the last,
or `{"error"}` with what vLLM's check of a request says. No engine is started.
"""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from openai_bls.core.engine_types import Grammar
from openai_bls_vllm.grammars import structured_outputs

MAX_TOKENS = 30
_LONG = 10


class Guidance:
    """vLLM's backend for one tokenizer, as its engine core makes it."""

    def __init__(self, folder: str, vocab_size: int) -> None:
        from transformers import AutoTokenizer
        from vllm.config import StructuredOutputsConfig
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend

        self._config = StructuredOutputsConfig(**structured_outputs.CONFIG)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        whole = SimpleNamespace(structured_outputs_config=self._config)
        self._backend = GuidanceBackend(whole, tokenizer=self._tokenizer, vocab_size=vocab_size)
        self.vocab_size = vocab_size
        self.eos_token_id: int = self._tokenizer.eos_token_id

    def walk(self, case: dict[str, Any]) -> dict[str, Any]:
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams
        from vllm.v1.structured_output.request import get_structured_output_key

        stops = structured_outputs.end_tokens(case["stop_token_ids"], self.eos_token_id, self.vocab_size)
        grammar = Grammar(case["kind"], case["text"])
        wanted = StructuredOutputsParams(grammar=structured_outputs.lark(grammar, stops))
        try:
            SamplingParams(structured_outputs=wanted)._validate_structured_outputs(
                SimpleNamespace(is_diffusion=False), self._config, self._tokenizer
            )
        except Exception as error:  # not always a ValueError
            return {"error": str(error)}
        assert wanted._backend == "guidance"
        compiled = self._backend.compile_grammar(*get_structured_output_key(wanted))
        choose = random.Random(case["seed"])
        preferred = set(case["preferred"])
        tokens: list[int] = []
        masks = []
        while True:
            row = self._backend.allocate_token_bitmask(1)
            compiled.fill_bitmask(row, 0)
            mask = row[0].numpy().astype("<i4")
            masks.append(mask.tobytes().hex())
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            allowed = set(np.flatnonzero(bits).tolist()) - {self.eos_token_id, *stops}
            if not allowed or len(tokens) == MAX_TOKENS:
                return {"token_ids": tokens, "masks": masks}
            closing = allowed & preferred
            choice = sorted(closing if closing and (len(tokens) > _LONG or choose.random() < 0.2) else allowed)
            tokens.append(choice[choose.randrange(len(choice))])
            assert compiled.accept_tokens("0", tokens[-1:])


def main() -> None:
    guidance = Guidance(sys.argv[1], int(sys.argv[2]))
    cases = msgspec.json.decode(sys.stdin.buffer.read())
    json.dump([guidance.walk(case) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()
