"""Sequences that step together through a model's own forward pass, with one cache, as in `generate`.

The arguments of a pass are made by the methods of the model that `generate` calls, and kept here between the passes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerationMode

from openai_bls_transformers import cache_argument
from openai_bls_transformers.attention_spec import LENGTH_DEPENDENT_ROPE, rope_types
from openai_bls_transformers.model.lora_layers import applied
from openai_bls_transformers.runners import cache_rows
from openai_bls_transformers.runners.runner import Sampling

_MODULE_STATES = ("conv1d_state", "recurrent_states")
"""Attributes of modules of RecurrentGemma, which keeps its state there."""
_MOST_PADDING = 2
"""Times the tokens of the shorter of two batches, up to which the longer one may have them in every row."""


@dataclasses.dataclass(slots=True, eq=False)
class SequenceState:
    """A sequence, its own output, and what `Sampler` asks of one."""

    request_id: str
    initial_tokens: list[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    logit_processor_kwargs: dict[str, Sampling]
    generated_tokens: list[int] = dataclasses.field(default_factory=list)
    error: str | None = None
    done: bool = False
    """Finished, failed or cancelled: its row is dropped before the next step."""
    scheduled_at: float | None = None
    """`time.monotonic()` of the beginning of its first forward pass."""
    media: Mapping[str, Any] | None = None
    """The model's arguments for the prompt's images, kept for a second start."""
    has_new_token = True

    @property
    def state(self) -> SequenceState:
        """Itself."""
        return self

    @property
    def position_offset(self) -> int:
        """Tokens so far."""
        return len(self.initial_tokens) + len(self.generated_tokens)

    def take(self, token_id: int) -> None:
        """Append a token that was sampled."""
        self.generated_tokens.append(token_id)
        self.done = token_id in self.stop_token_ids or len(self.generated_tokens) >= self.max_new_tokens


class StepModel:
    """A causal language model as `generate` steps through it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        accepted = inspect.signature(model.forward).parameters
        self._takes_mask = "attention_mask" in accepted
        self._takes_positions = "position_ids" in accepted
        self._kept: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        text = model.config.get_text_config(decoder=True)
        types = rope_types(text)
        alike = not types & LENGTH_DEPENDENT_ROPE
        self._rotaries = [m for m in model.modules() if hasattr(m, "max_seq_len_cached")] if "dynamic" in types else []
        self._stateful = [
            (module, name) for module in model.modules() for name in _MODULE_STATES if hasattr(module, name)
        ]
        self._in_rows = alike and self._takes_mask and not self._stateful
        # Chunks, and scales that go with them, count from the left of a row, padding included.
        chunked = "chunked_attention" in (getattr(text, "layer_types", None) or ())
        self._in_padded_rows = self._takes_positions and not chunked
        made = getattr(type(model), "_prepare_position_ids_for_generation", None)
        self._own_positions = made is not GenerationMixin._prepare_position_ids_for_generation
        self._in_pieces = alike and getattr(model, "_supports_attention_backend", False)

    def begin(self, state: SequenceState) -> tuple[torch.Tensor, dict[str, Any]]:
        """The ids [1, tokens] of a prompt and of what a sequence has generated, and the arguments of its passes."""
        token_ids = state.initial_tokens + state.generated_tokens
        ids = torch.tensor([token_ids], device=self.model.device)
        arguments: dict[str, Any] = {"use_cache": True, **self._kept, **(state.media or {})}
        if self._takes_mask:
            arguments["attention_mask"] = None
        self.model._prepare_cache_for_generation(
            GenerationConfig(), arguments, GenerationMode.GREEDY_SEARCH, 1, len(token_ids)
        )
        if self._takes_positions:
            # Those of tokens in an image have several axes in some models; a token behind the prompt has the next one.
            prompt = ids[:, : len(state.initial_tokens)]
            if self._own_positions:
                positions = self.model._prepare_position_ids_for_generation(prompt, arguments)
            else:
                positions = torch.arange(prompt.shape[1], device=ids.device).unsqueeze(0)
            more = torch.arange(1, 1 + len(state.generated_tokens), device=ids.device).expand(*positions.shape[:-1], -1)
            arguments["position_ids"] = torch.cat([positions, positions[..., -1:] + more], dim=-1)
        return ids, arguments

    def can_extend(self, arguments: dict[str, Any]) -> bool:
        """True if a prompt may be taken in by several passes."""
        return self._in_pieces and cache_rows.can_extend(cache_argument.cache_of(arguments))

    def can_join(self, one: SequenceBatch, other: SequenceBatch) -> bool:
        """True if two batches can be put together, and not to fill most of the cache with padding."""
        if not self._in_rows or not cache_rows.can_batch(one.cache):
            return False
        shorter, longer = sorted((one.length, other.length))
        return (
            shorter == longer
            or not cache_rows.is_growing(one.cache)
            or (self._in_padded_rows and longer <= shorter * _MOST_PADDING)
        )

    def forward(self, ids: torch.Tensor, arguments: dict[str, Any], states: list[Any], **more: Any) -> Any:
        """Output of a pass over `ids`.

        Args:
            ids: token ids of the pass.
            arguments: arguments of the pass, with the cache of earlier tokens.
            states: states that modules of the model keep between passes of one batch, changed in place.
            more: arguments of the model's `prepare_inputs_for_generation`.
        """
        for (module, name), state in zip(self._stateful, states, strict=False):
            setattr(module, name, state)
        for rotary in self._rotaries:
            # It keeps the frequencies of the longest sequence that it has met.
            rotary.register_buffer("inv_freq", rotary.original_inv_freq, persistent=False)
            rotary.max_seq_len_cached = rotary.original_max_seq_len
        output = self.model(**self.model.prepare_inputs_for_generation(ids, **more, **arguments), return_dict=True)
        states[:] = [getattr(module, name) for module, name in self._stateful]
        return output


class SequenceBatch:
    """Sequences with one cache; one alone until its prompt is taken in."""

    def __init__(self, steps: StepModel, states: list[SequenceState], ids: torch.Tensor, arguments: Any) -> None:
        self._steps = steps
        self.states = states
        self._ids = ids
        self._arguments: dict[str, Any] = arguments
        self._module_states: list[Any] = []
        self._taken_in = 0
        self._media: Collection[str] = ()
        """Names of the arguments for images, for the first pass alone."""

    @classmethod
    def of(cls, steps: StepModel, state: SequenceState) -> SequenceBatch:
        """A sequence whose prompt, and whose output if it was preempted, are still to be taken in."""
        batch = cls(steps, [state], *steps.begin(state))
        batch._media = state.media or ()
        return batch

    @property
    def cache(self) -> Any:
        """The model's cache, whatever that is."""
        return cache_argument.cache_of(self._arguments)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return int(self._ids.shape[1])

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds, padding included."""
        return self._ids.numel() if cache_rows.is_growing(self.cache) else 0

    @property
    def unread(self) -> int:
        """Tokens of the prompt that no pass has had yet."""
        return self.length - self._taken_in

    def read(self, most: int) -> torch.Tensor | None:
        """Take in `most` tokens of the prompt, or all where its cache or its images want that.

        Returns:
            Logits [1, vocabulary] at its end; None before.
        """
        start, end = self._taken_in, self._end_of_piece(most)
        self._taken_in = end
        now = dict(self._arguments)
        if "position_ids" in now:
            now["position_ids"] = now["position_ids"][..., start:end]
        first = not start or self.states[0].media is None
        output = self._forward(self._ids[:, start:end], now, is_first_iteration=first)
        for name in self._media:
            del self._arguments[name]
        self._media = ()
        return self._finish(output) if end == self.length else None

    def _end_of_piece(self, most: int) -> int:
        """End of the next piece of the prompt."""
        state, start = self.states[0], self._taken_in
        if self._media:  # masks and positions inside an image are those of one pass
            return len(state.initial_tokens)
        if self._steps.can_extend(self._arguments):
            return min(self.length, start + most)
        # The output of a sequence that begins again comes as it came before, behind its images.
        return self.length if state.media is None else start + 1

    def step(self) -> torch.Tensor:
        """Logits [sequences, vocabulary] of the next tokens."""
        return self._finish(self._forward(self._ids, self._arguments, next_sequence_length=1))

    def _forward(self, ids: torch.Tensor, arguments: dict[str, Any], **more: Any) -> Any:
        with applied(self._steps.model, [state.logit_processor_kwargs["sampling"].lora_slot for state in self.states]):
            return self._steps.forward(ids, arguments, self._module_states, **more)

    def append(self, token_ids: torch.Tensor) -> None:
        """Take the tokens [sequences] that were chosen for the next step."""
        self._ids = torch.cat([self._ids, token_ids.to(self._ids).unsqueeze(1)], dim=1)
        self._taken_in = self.length

    def drop_done(self) -> None:
        """Let go of the rows of sequences that are done."""
        rows = [row for row, state in enumerate(self.states) if not state.done]
        if len(rows) == len(self.states):
            return
        self.states = [self.states[row] for row in rows]
        if not rows:
            return
        padding = self.length - max(state.position_offset for state in self.states)
        index = torch.tensor(rows, device=self._ids.device)
        cache = cache_rows.select(self.cache, index, padding)
        self._replace(self._ids[index, padding:], self._positions()[..., index, padding:], cache)

    def join(self, other: SequenceBatch) -> SequenceBatch:
        """Both batches as one, after their last tokens have been appended."""
        first, second = sorted((self, other), key=lambda batch: -batch.length)
        both = SequenceBatch(first._steps, first.states + second.states, first._ids, dict(first._arguments))
        padding = first.length - second.length
        both._replace(
            torch.cat([first._ids, pad(second._ids, (padding, 0))]),
            torch.cat([first._positions(), pad(second._positions(), (padding, 0))], dim=-2),
            cache_rows.merge([first.cache, second.cache]),
        )
        return both

    def _positions(self) -> torch.Tensor:
        """[..., sequences, tokens]."""
        positions = self._arguments.get("position_ids")
        if positions is None:
            positions = torch.zeros_like(self._ids)
        expanded: torch.Tensor = positions.expand(*positions.shape[:-2], *self._ids.shape)
        return expanded

    def _replace(self, ids: torch.Tensor, positions: torch.Tensor, cache: Any) -> None:
        self._ids = ids
        self._taken_in = self.length
        for name in cache_argument.NAMES:
            if name in self._arguments:
                self._arguments[name] = cache
        if "position_ids" in self._arguments:
            self._arguments["position_ids"] = positions
        padding = torch.tensor([self.length - state.position_offset for state in self.states], device=ids.device)
        mask = (torch.arange(self.length, device=ids.device) >= padding.unsqueeze(1)).long()
        self._arguments["attention_mask"] = None if bool(mask.all()) else mask

    def _finish(self, output: Any) -> torch.Tensor:
        self._arguments = self._steps.model._update_model_kwargs_for_generation(output, self._arguments)
        logits: torch.Tensor = output.logits[:, -1]
        return logits
