"""From logits to a token, as the C++ decoder has it: penalties, bias, bad words, temperature, top-k, top-p, min-p."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorrt_llm._result import Logprob

NEVER = float("-inf")


class Sampler:
    """Of one sequence."""

    def __init__(self, params: Any, prompt: Sequence[int], seed_offset: int) -> None:
        import torch

        self._params = params
        self._history = list(prompt)
        self._prompt_length = len(prompt)
        self._generator = torch.Generator()
        # Without a seed the C++ decoder takes 0: the same prompt gets the same answer every time.
        self._generator.manual_seed(int(params.seed or 0) % (1 << 63) + seed_offset)
        self._bad_words = params._get_bad_words()
        self._ending = [] if params.ignore_eos or params.end_id is None else [params.end_id]

    def draw(self, raw: Any, mask: Any) -> int:
        """One token from scores of shape [vocab_size], which are left as they are; `mask` is true where it may come."""
        import torch

        params = self._params
        logits = raw.clone()
        if params.embedding_bias is not None:
            bias = torch.as_tensor(params.embedding_bias, dtype=torch.float32)
            if bias.shape != logits.shape:
                raise ValueError(f"embedding_bias must have shape [{len(logits)}], got {list(bias.shape)}")
            logits += bias
        self._penalize(logits)
        produced = len(self._history) - self._prompt_length
        if produced < (params.min_tokens or 0):
            # Stop words are not held back by it.
            logits[self._ending] = NEVER
        for word in self._bad_words:
            before = len(word) - 1
            if before == 0 or self._history[-before:] == list(word[:-1]):
                logits[word[-1]] = NEVER
        if mask is not None:
            logits[~mask] = NEVER
        token = self._pick(logits)
        self._history.append(token)
        return token

    def _penalize(self, logits: Any) -> None:
        import torch

        params = self._params
        repetition, presence = params.repetition_penalty or 1.0, params.presence_penalty or 0.0
        frequency = params.frequency_penalty or 0.0
        if (repetition, presence, frequency) == (1.0, 0.0, 0.0):
            return
        # The prompt counts for all three.
        seen, counts = torch.tensor(self._history).unique(return_counts=True)
        scores = logits[seen]
        scores = torch.where(scores < 0, scores * repetition, scores / repetition)
        logits[seen] = scores - presence - frequency * counts

    def _pick(self, logits: Any) -> int:
        import torch

        params = self._params
        if params.is_greedy or params.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits / (params.temperature or 1.0), dim=-1)
        if params.top_k:
            least = probabilities.topk(min(params.top_k, len(probabilities))).values[-1]
            probabilities[probabilities < least] = 0
        if params.top_p is not None and 0 < params.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            before = ordered.cumsum(0) - ordered
            probabilities[order[before > params.top_p * ordered.sum()]] = 0
        if params.min_p:
            probabilities[probabilities < params.min_p * probabilities.max()] = 0
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def logprobs(raw: Any, token: int, count: int) -> dict[int, Logprob]:
    """Of the model's own distribution: the `count` likeliest, and the token if it is not among them."""
    import torch

    scores = torch.log_softmax(raw.float(), dim=-1)
    values, indices = scores.topk(count)
    found = {
        int(index): Logprob(float(value), rank + 1)
        for rank, (value, index) in enumerate(zip(values.tolist(), indices.tolist(), strict=True))
    }
    if token not in found:
        own = float(scores[token])
        found[token] = Logprob(own, int((scores > own).sum()) + 1)
    return found
