"""Size of a pass over short prompts: tokens that a step of vLLM takes at most while many of them wait.

A pass gives all of its prompts their first tokens at its end. vLLM fills it up to `max_num_batched_tokens`: of 64
prompts that come together the first answers as late as the last. In shorter passes the last is about as late, and the
median is sooner. A pass must stay long enough to keep the GPU busy with arithmetic, not with starting kernels, and long
prompts gain nothing: these keep vLLM's own size.
"""

from __future__ import annotations

from collections.abc import Iterable

SHORT_PROMPT = 512
"""Tokens of the longest prompt that counts as short."""
SMALLEST_PASS = 512
"""Prompt tokens of a pass at least, whatever the model."""
_BYTES_TIMES_TOKENS = 31_000_000_000_000
"""Bytes of weights on a GPU times prompt tokens of a pass: 2,040 tokens of a 7B in bf16, some 45 ms on an H200.

Larger models have proportionally shorter passes, which take as long. Measured as `max_num_batched_tokens` of 2,048
(RESULTS.md, "First tokens at 64 and 256 streams").
"""


def pass_size(weight_bytes: int) -> int:
    """Prompt tokens after which a pass over short prompts ends.

    Args:
        weight_bytes: bytes of a dense model's weights on each GPU.
    """
    return max(SMALLEST_PASS, _BYTES_TIMES_TOKENS // max(1, weight_bytes))


def step_tokens(waiting: Iterable[int], running: int, size: int, most: int) -> int:
    """Tokens that the next step takes at most.

    The size holds where the prompts that would come next are short and more wait behind them. No prompt is cut that
    vLLM would not have cut, since a step ends with the last prompt that begins within `size`.

    Args:
        waiting: tokens of the prompts that wait, the first first; no more of them are read than are needed.
        running: tokens that the requests in progress take.
        size: prompt tokens after which a pass ends.
        most: tokens that vLLM takes at most.
    """
    prompts = 0
    for tokens in waiting:
        if prompts >= size:
            return min(most, running + prompts)
        if tokens > SHORT_PROMPT:
            return most
        prompts += tokens
    return most
