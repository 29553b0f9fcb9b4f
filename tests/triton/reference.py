"""The demo model in transformers, float32: greedy answers, log-probabilities, decoding by changed scores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.triton.conftest import Golden

CHECKPOINT = Path(__file__).parents[2] / "demo" / "checkpoint"
Change = Callable[[Any, list[int]], None]
"""Changes the scores (shape [vocabulary]) of the token after the given output, in place."""


class Place(NamedTuple):
    """One token under the model's own distribution."""

    logprob: float
    top: list[tuple[bytes, float]]
    """(bytes, log-probability) of the likeliest tokens, the likeliest first."""


class Reference:
    """Each part is loaded at its first use."""

    def __init__(self) -> None:
        self._generated: dict[tuple[int, ...], tuple[int, ...]] = {}

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(CHECKPOINT)

    @functools.cached_property
    def model(self) -> Any:
        """The checkpoint's weights."""
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)

    @functools.cached_property
    def ends(self) -> set[int]:
        """End tokens."""
        return {self.tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")}

    @functools.cached_property
    def _bytes(self) -> dict[int, bytes]:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        added = self.tokenizer.get_added_vocab()
        return {
            token_id: token.encode() if token in added else bytes(byte_of[character] for character in token)
            for token, token_id in self.tokenizer.get_vocab().items()
        }

    def raw(self, token_id: int) -> bytes:
        """A token's bytes."""
        return self._bytes[token_id]

    def id_of(self, raw: bytes) -> int:
        """The token of these bytes."""
        (token_id,) = [token_id for token_id, known in self._bytes.items() if known == raw]
        return token_id

    def ids(self, text: str) -> list[int]:
        """`text` as tokens, none added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def chat(self, messages: Any, **options: Any) -> list[int]:
        """A conversation as tokens, up to where the answer begins."""
        return self.ids(
            self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        )

    def prompt_token_ids(self, golden: Golden) -> list[int]:
        """The prompt as transformers renders and tokenizes it."""
        if golden.raw is None:
            return self.chat(golden.messages, tools=golden.tools)
        ids: list[int] = self.tokenizer(golden.raw)["input_ids"]
        return ids

    def generate(self, goldens: Sequence[Golden]) -> None:
        """Let transformers' greedy `generate` answer, in batches of prompts whose answers are of like lengths."""
        import torch

        wanted = {tuple(self.prompt_token_ids(golden)): golden.tokens for golden in goldens}
        left = sorted(wanted.keys() - self._generated.keys(), key=lambda prompt: wanted[prompt])
        options: dict[str, Any] = {"temperature": None, "top_p": None, "top_k": None, "do_sample": False}
        for prompts in (left[at : at + 16] for at in range(0, len(left), 16)):
            longest = max(map(len, prompts))
            padding = self.tokenizer.pad_token_id
            ids = torch.tensor([[padding] * (longest - len(prompt)) + [*prompt] for prompt in prompts])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            with torch.inference_mode():
                output = self.model.generate(ids, attention_mask=mask, max_new_tokens=1200, **options)
            for prompt, row in zip(prompts, output[:, longest:].tolist(), strict=True):
                end = next((at + 1 for at, token in enumerate(row) if token in self.ends), len(row))
                self._generated[prompt] = tuple(row[:end])

    def token_ids(self, golden: Golden, max_tokens: int = 1200) -> tuple[int, ...]:
        """The tokens of transformers' greedy `generate`, an end token included."""
        self.generate([golden])
        return self._generated[tuple(self.prompt_token_ids(golden))][:max_tokens]

    def output_ids(self, golden: Golden, max_tokens: int = 1200) -> list[int]:
        """The same without the end token."""
        return [token for token in self.token_ids(golden, max_tokens) if token not in self.ends]

    def text(self, golden: Golden, max_tokens: int) -> str:
        """The answer, cut after `max_tokens`."""
        return self.decode(self.token_ids(golden, max_tokens))

    def scores(self, token_ids: Sequence[int]) -> Any:
        """Shape [len(token_ids), vocabulary]: logits of what follows each token."""
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor([list(token_ids)])).logits[0].float()

    def places(self, token_ids: Sequence[int], k: int) -> list[Place]:
        """Of the tokens from the second on, each after those before it; with the `k` likeliest."""
        logprobs = self.scores(token_ids)[:-1].log_softmax(dim=-1)
        values, indices = logprobs.topk(k, dim=-1)
        return [
            Place(float(row[token]), [(self.raw(i), value) for i, value in zip(likeliest, top, strict=True)])
            for row, token, likeliest, top in zip(
                logprobs, token_ids[1:], indices.tolist(), values.tolist(), strict=True
            )
        ]

    def log_probs(self, prompt: list[int], output: list[int]) -> list[float]:
        """Of each token of `output`."""
        return [place.logprob for place in self.places([*prompt, *output], 0)[len(prompt) - 1 :]]

    def greedy(self, prompt: list[int], max_tokens: int, change: Change) -> list[int]:
        """The likeliest tokens by scores that `change` changes, up to and without an end token."""
        output: list[int] = []
        while len(output) < max_tokens:
            row = self.scores([*prompt, *output])[-1].clone()
            change(row, output)
            token_id: int = row.argmax().item()
            if token_id in self.ends:
                break
            output.append(token_id)
        return output


@functools.cache
def load_reference() -> Reference:
    """The one of this process."""
    return Reference()
