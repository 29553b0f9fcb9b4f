"""Model runner of continuous batching, in the place of transformers' own; on a GPU it replays CUDA graphs.

A step is a forward pass and the sampling of the next tokens. The pass is captured with the choice of the likeliest
tokens, so that a greedy step is one graph; whatever else is sampled comes after it. Steps are padded to a ladder of
sizes, each with its own graph; prompts beyond the ladder keep the GPU busy without one. All graphs exist before the
first request.

When steps overlap, a step under a grammar launches its forward pass with the tokens that the step before left on the
device. While the pass runs, the host takes in those tokens and computes the bitmasks; then it launches the sampling.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs
from transformers.generation.continuous_batching.model_runner import ModelRunner

from openai_bls.core.manifest import first_line
from openai_bls_transformers.gpu import paged_attention
from openai_bls_transformers.model import fused_layers
from openai_bls_transformers.runners.image_rows import Fail, ImageRows, image_rows, read
from openai_bls_transformers.runners.sampler import Sampler, likeliest
from openai_bls_transformers.runners.step_budget import StepTimes

logger = logging.getLogger(__name__)

_LADDER = (
    *(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 448, 512, 640, 768, 896, 1024),
    *range(1280, 2049, 256),
)
_LONG = 2**30  # tokens, more than any sequence has
_LEAST_PROMPT = 16  # tokens of the smallest step with prompts that is captured
_MOST_MEASURED = _LADDER[-1] + 64  # tokens: larger steps take longer than a sequence that decodes should wait


_GraphKey = tuple[int, int, bool, bool, bool]
"""Set of inputs, tokens, decoding only, any keys in the cache, long contexts."""


def ladder(limit: int) -> tuple[int, ...]:
    """Sizes up to `limit`, which is the last."""
    steps = [*_LADDER]
    while steps[-1] < limit:
        steps.append(steps[-1] + 128)
    return (*(step for step in steps if step < limit), limit)


def padded(count: int, steps: tuple[int, ...]) -> int:
    """The least of `steps` that holds `count`, or `count` itself beyond them."""
    place = bisect.bisect_left(steps, count)
    return steps[place] if place < len(steps) else count


class _Memory:
    """Memory of a tensor for as long as nobody else writes there, without a share in it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        rows = tensor.view(torch.int8)
        self.__cuda_array_interface__ = {
            "shape": tuple(rows.shape),
            "typestr": "|i1",
            "data": (rows.data_ptr(), False),
            "version": 3,
        }


class CudaGraphRunner(ModelRunner):  # type: ignore[misc]
    """Model runner of steps, by CUDA graphs where they are allowed."""

    def __init__(
        self,
        sampler: Sampler,
        update_last_step: Callable[[], None],
        *,
        graphs: bool,
        paged: bool,
        fail: Fail | None,
        **kwargs: Any,
    ) -> None:
        """Take the place of a `ModelRunner`.

        Args:
            sampler: samples the tokens.
            update_last_step: waits for the tokens of the step before and updates its sequences.
            graphs: capture steps that have one new token per sequence and page tables.
            paged: attention is `gpu.paged_attention`'s, which takes lengths from the device alone, so that steps with
                prompts are captured too, and has a kernel for long prompts, whose place it must be told.
            fail: ends a sequence whose images cannot be read; None if prompts hold none.
            kwargs: arguments of `ModelRunner`.
        """
        super().__init__(**kwargs)
        self._sampler = sampler
        self._update_last_step = update_last_step
        self._fail = fail
        self._graphs_allowed = graphs
        self._graphs: dict[_GraphKey, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        """Graphs and the logits that each leaves, until another is replayed: all graphs share one pool of memory."""
        self._pool: Any = None
        most = self.cb_config.max_requests_per_batch
        self._decode_steps = ladder(most)
        limit = min(_LADDER[-1], self.cache.max_batch_tokens)
        self._prompt_steps = tuple(step for step in _LADDER if paged and _LEAST_PROMPT <= step <= limit)
        self._paged = paged
        self._counters = torch.zeros(most, dtype=torch.int32, device=self.cache.device) if paged else None
        self._longest: int | None = None
        """Tokens of the longest sequence for which warm-up makes graphs; None: those of the step."""
        self.step_times: StepTimes | None = None
        """Measured by `warmup`, with paged attention on a GPU."""
        self.pad_inputs = graphs

    @property
    def _asynchronous(self) -> bool:
        return isinstance(self.inputs_and_outputs, ContinuousBatchingAsyncIOs)

    def maybe_pad_inputs(self, num_q_tokens: int, max_kv_read: int, use_decode_fast_path: bool) -> tuple[int, int]:
        """The sizes to which a step is padded; keys are read by the device's own count, whatever the size says."""
        if not self.pad_inputs:
            return num_q_tokens, max_kv_read
        if use_decode_fast_path:
            return padded(num_q_tokens, self._decode_steps), 0
        return padded(num_q_tokens, self._prompt_steps), max_kv_read

    def compute_batch(self, model: Any, batch_data: dict[str, Any]) -> None:
        """Queue a step on the device; its tokens go to where continuous batching looks for them."""
        ios = self.inputs_and_outputs
        carry_over, previous, output = ios.get_cb_kwargs()
        host = ios.io_pairs[ios.current_pair].host_io if self._asynchronous else ios
        rows = len(host.req_id_to_new_token_position)
        images: list[ImageRows] = []

        def forward() -> torch.Tensor:
            self._carry_over(batch_data["input_ids"], carry_over, previous)
            with read(model, images):
                logits = self._wanted_logits(model, batch_data).contiguous()
            self._choose_likeliest(logits, output[0])
            return logits

        stream = ios.compute_stream
        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            if self._fail is not None:
                images += image_rows(model, host.requests_in_batch, self._fail)
            logits = self._forward(host, forward, batch_data, captured=not images)
            if rows and not self._sampler.is_greedy:
                if self._asynchronous and self._sampler.needs_last_tokens:
                    self._update_last_step()
                last_ids = batch_data["input_ids"][0, batch_data["logits_indices"][:rows]]
                args = batch_data["logits_processor_args"][:, :rows]
                output[0, :rows].copy_(self._sampler.pick(last_ids, logits[:rows], args, output[0, :rows]))

    def _wanted_logits(self, model: Any, batch_data: dict[str, Any]) -> torch.Tensor:
        """Logits of the step at its `logits_indices`."""
        wanted, tokens = batch_data["logits_indices"], batch_data["input_ids"].shape[-1]
        if not self.supports_logits_to_keep(model):
            return model(**batch_data).logits[0, wanted]
        kept = {"logits_to_keep": wanted}
        if self._paged and len(wanted) < tokens and fused_layers.narrows(model):
            kept = {"last_layer_rows": wanted, "logits_to_keep": 0}  # all that the last layer leaves
        return model(**batch_data, **kept).logits[0]

    def _carry_over(self, token_ids: torch.Tensor, rows: torch.Tensor, previous: torch.Tensor) -> None:
        """Put the tokens of the step before into the inputs of this one, where steps overlap."""
        if self._counters is None or not token_ids.is_cuda:
            if self._asynchronous:
                previous = previous.clamp(min=0)  # where a sequence has failed there is no token
            self.inputs_and_outputs.carry_over_tokens(token_ids, rows, previous)
        elif self._asynchronous:
            from openai_bls_transformers.gpu import token_kernels

            token_kernels.carry_over(token_ids, rows, previous[0])

    def _choose_likeliest(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Write the likeliest token of each row of `logits` into `tokens`, as `sampler.likeliest` has them."""
        if self._counters is None or not logits.is_cuda:
            tokens[: len(logits)].copy_(likeliest(logits))
        else:
            from openai_bls_transformers.gpu import token_kernels

            token_kernels.argmax(logits, tokens, self._counters)

    def _forward(
        self, host: Any, forward: Callable[[], torch.Tensor], batch_data: dict[str, Any], *, captured: bool
    ) -> torch.Tensor:
        """The logits of the step, by a graph where one fits and `captured` allows one."""
        size = host.num_q_tokens
        steps = self._decode_steps if host.use_block_table else self._prompt_steps
        prompts = self._paged and not host.use_block_table
        if prompts and host.max_kv_read > 0:
            longest = max(host.max_length_k.values()) if self._longest is None else self._longest
            batch_data["split_keys"] = paged_attention.splits_keys(longest)
        if not (captured and self._graphs_allowed) or size not in steps:
            if prompts:
                # Graphs alone need as many as there may be.
                rows = padded(host.num_request_in_batch, self._decode_steps)
                batch_data["logits_indices"] = batch_data["logits_indices"][:rows]
                ends = host.cumulative_seqlens_k["full_attention"][: host.num_request_in_batch + 1]
                queries = host.cumulative_seqlens_q[: host.num_request_in_batch + 1]
                batch_data["long_prompts"] = paged_attention.long_prompts(queries.tolist(), ends.tolist())
            return forward()
        pair = self.inputs_and_outputs.current_pair if self._asynchronous else 0
        key = (pair, size, bool(host.use_block_table), host.max_kv_read > 0, batch_data.get("split_keys", False))
        if key not in self._graphs:
            # What is made on first use must exist before a capture; the other set of inputs has seen to that.
            is_known = (1 - pair, *key[1:]) in self._graphs
            logits = None if is_known else forward()
            self._capture(key, forward)
            if key not in self._graphs:
                return forward() if logits is None else logits
            if logits is not None:
                return logits
        graph, logits = self._graphs[key]
        graph.replay()
        return logits

    def _capture(self, key: _GraphKey, forward: Callable[[], torch.Tensor]) -> None:
        """Add the graph for `key`. A step that cannot be captured ends all capturing: the engine goes on without."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                logits = forward()
            finally:
                graph.capture_end()
        except Exception as error:
            reason = first_line(error)
            logger.warning("CUDA graphs are off, a step cannot be captured: %s", reason)
            self._graphs_allowed = False
            torch.cuda.synchronize()
            return
        # Were these tensors kept, each graph would need memory of its own for them.
        self._graphs[key] = graph, torch.as_tensor(_Memory(logits), device=logits.device).view(logits.dtype)

    def run_one_warmup(self, *args: Any) -> float:
        """Run one shape. The step before must be over: its inputs are written anew, and it may still read them."""
        torch.cuda.synchronize()
        return float(super().run_one_warmup(*args))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def warmup(self, model: Any) -> None:
        """Run every shape once, the largest first, which captures the graphs and compiles the kernels."""
        if model.device.type != "cuda":
            return
        torch.cuda.synchronize()
        started = time.monotonic()
        page = int(getattr(self.cb_config, "page_size", 0) or getattr(self.cache, "block_size", 0) or 32)
        for _ in range(2 if self._asynchronous else 1):
            self.run_one_warmup(model, self.cache.max_batch_tokens - page, 0)
            for size in reversed((self._graphs_allowed and self._prompt_steps) or (_LEAST_PROMPT,)):
                for longest in (0, _LONG) if self._paged else (0,):
                    self._longest = longest
                    self.run_one_warmup(model, size, page)
                self.run_one_warmup(model, size, 0)
            for size in reversed(self._decode_steps if self._graphs_allowed else (1,)):
                self.run_one_warmup(model, size, None)
            if self._asynchronous:
                self.inputs_and_outputs.swap_io_pairs()
        self._longest = None
        if self._paged:
            self.step_times = self._measure_steps(model, page)
        torch.cuda.synchronize()
        if hasattr(self.cache, "reset"):
            self.cache.reset()
        logger.info("%d CUDA graphs after %.1f s", len(self._graphs), time.monotonic() - started)

    def _measure_steps(self, model: Any, page: int) -> StepTimes:
        """Times of steps with one prompt, by the number of tokens."""
        most = min(self.cache.max_batch_tokens, _MOST_MEASURED) - page
        captured = (0, *self._prompt_steps)
        sizes = [*captured[1:], *range(captured[-1] + 256, most, 256)]
        seconds: list[tuple[int, float]] = []
        for size in sizes:
            times: list[float] = []
            for _ in range(2):
                torch.cuda.synchronize()
                started = time.perf_counter()
                self.run_one_warmup(model, size, page)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - started)
            seconds.append((size, min(times)))
        return StepTimes(seconds, paged_attention.seconds_per_score(model))
