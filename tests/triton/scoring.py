"""What the demo model itself thinks of tokens, worked out with transformers: log-probabilities, and greedy decoding by
scores that are changed first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.triton.conftest import CHECKPOINT

Change = Callable[[Any, list[int]], None]
"""Changes the scores (shape [vocabulary]) of the token after the given output, in place."""


class Place(NamedTuple):
    """One token under the model's own distribution."""

    logprob: float
    top: list[tuple[bytes, float]]
    """(bytes, log-probability) of the likeliest tokens, the likeliest first."""


class Scores:
    """The demo model in float32."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self.tokenizer: Any = AutoTokenizer.from_pretrained(CHECKPOINT)
        self._model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
        self.eos: set[int] = set(self._model.generation_config.eos_token_id)
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        added = self.tokenizer.get_added_vocab()
        self._bytes = {
            token_id: token.encode() if token in added else bytes(byte_of[character] for character in token)
            for token, token_id in self.tokenizer.get_vocab().items()
        }
        self._ids = {raw: token_id for token_id, raw in self._bytes.items()}
        assert len(self._ids) == len(self._bytes)

    def ids(self, text: str) -> list[int]:
        """`text` as tokens, none added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """A conversation as tokens, up to where the answer begins."""
        return self.ids(
            self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        )

    def raw(self, token_id: int) -> bytes:
        """A token's bytes."""
        return self._bytes[token_id]

    def id_of(self, raw: bytes) -> int:
        """The token of these bytes, of which there is one at most."""
        token_id: int = self._ids[raw]
        return token_id

    def text(self, token_ids: Sequence[int]) -> str:
        """Decoded as transformers does it, special tokens left out."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def places(self, token_ids: Sequence[int], k: int) -> list[Place]:
        """Of the tokens from the second on, each after those before it; with the `k` likeliest."""
        torch = self._torch
        with torch.inference_mode():
            logits = self._model(torch.tensor([list(token_ids)])).logits[0, :-1]
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        own = logprobs.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()
        values, indices = logprobs.topk(k, dim=-1) if k else (logprobs[:, :0], logprobs[:, :0])
        return [
            Place(logprob, [(self.raw(int(i)), v) for i, v in zip(row, top, strict=True)])
            for logprob, row, top in zip(own, indices.tolist(), values.tolist(), strict=True)
        ]

    def greedy(self, prompt: list[int], max_tokens: int, change: Change) -> list[int]:
        """The likeliest tokens by scores that `change` changes, up to and without an end token."""
        torch = self._torch
        output: list[int] = []
        with torch.inference_mode():
            for _ in range(max_tokens):
                scores = self._model(torch.tensor([prompt + output])).logits[0, -1].float()
                change(scores, output)
                token_id: int = scores.argmax().item()
                if token_id in self.eos:
                    break
                output.append(token_id)
        return output


@functools.cache
def scores() -> Scores:
    """Loaded once."""
    return Scores()
