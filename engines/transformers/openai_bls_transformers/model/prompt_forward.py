"""Plain forward passes over prompts, of a model that continuous batching runs.

They yield log-probabilities of the tokens of one prompt, or embeddings of several, without a cache and with plain
causal attention.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from openai_bls.core.engine_types import GenerationRequest, PromptLogprobs
from openai_bls.core.logprobs import packed
from openai_bls.engines.not_finite import NotFiniteError

_SLICE_NUMBERS = 1 << 24
"""Float32 logits that exist at a time: 64 MiB."""


@dataclasses.dataclass(frozen=True, slots=True)
class PromptFindings:
    """Results of a pass over a prompt."""

    prompt_logprobs: PromptLogprobs | None = None
    embedding: list[float] | None = None


def needed(request: GenerationRequest) -> bool:
    """True if a request wants log-probabilities or an embedding of its prompt."""
    return request.prompt_logprobs is not None or request.pooling is not None


@torch.no_grad()  # type: ignore[untyped-decorator]
def prompt_pass(model: Any, request: GenerationRequest) -> PromptFindings:
    """Run `model`, a transformers causal language model, over the prompt of `request`; waits for the device.

    Raises:
        NotFiniteError: its logits are NaN or infinite.
    """
    ids = torch.tensor([request.prompt_token_ids], device=model.device)
    with plain_attention(model):
        output = model.base_model(input_ids=ids, use_cache=False, return_dict=True)
        embedding = logprobs = None
        if request.pooling is not None:
            embedding = _pooled(output.last_hidden_state[0], request.pooling)
        if request.prompt_logprobs is not None:
            logprobs = _logprobs(model, ids, output, request.prompt_logprobs)
    return PromptFindings(logprobs, embedding)


@torch.no_grad()  # type: ignore[untyped-decorator]
def embeddings(model: Any, requests: Sequence[GenerationRequest]) -> list[list[float]]:
    """Embeddings of the prompts of `requests` by one pass of `model`; waits for the device.

    Behind a shorter prompt is padding, which its tokens do not see: attention is causal. An embedding may be of NaN.
    """
    prompts = [torch.tensor(request.prompt_token_ids) for request in requests]
    ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(model.device)
    with plain_attention(model):
        hidden = model.base_model(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state
        return [_pooled(hidden[at, : len(prompt)], requests[at].pooling) for at, prompt in enumerate(prompts)]


@contextlib.contextmanager
def plain_attention(model: Any, implementation: str | None = None) -> Iterator[None]:
    """Let `model` attend without a paged cache: as when it was loaded, or by an implementation of transformers'."""
    configs = {id(model.config): model.config}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            configs.setdefault(id(config), config)
    before = [(config, config._attn_implementation) for config in configs.values()]
    try:
        for config, name in before:
            config._attn_implementation = implementation or ("eager" if str(name).endswith("eager") else "sdpa")
        yield
    finally:
        # A configuration's setter also sets those inside it, which come later in the order of the modules.
        for config, name in before:
            config._attn_implementation = name


def _pooled(hidden: torch.Tensor, pooling: str | None) -> list[float]:
    """One vector of length 1 from hidden states [tokens, size]."""
    vector = hidden[-1].float() if pooling == "last" else hidden.float().mean(dim=0)
    found: list[float] = torch.nn.functional.normalize(vector, dim=0).tolist()
    return found


def _logprobs(model: Any, ids: torch.Tensor, output: Any, count: int) -> PromptLogprobs:
    """Log-probabilities of a prompt [1, tokens] from its second token on, by slices of `output`."""
    targets = ids[0, 1:]
    rows = max(1, _SLICE_NUMBERS // model.config.get_text_config().vocab_size)
    parts = []
    for start, part in _logits(model, ids, output, rows):
        logits = part.float()
        total = logits.logsumexp(dim=-1, keepdim=True)
        if not bool(total.isfinite().all()):
            raise NotFiniteError
        top = logits.topk(min(count, logits.size(-1)), dim=-1)
        own = logits.gather(-1, targets[start : start + rows].unsqueeze(-1)) - total
        parts.append((own.squeeze(-1), top.indices, top.values - total))
    if not parts:
        return PromptLogprobs(count, [])
    own, top_token_ids, top_logprobs = (torch.cat(columns).cpu().numpy() for columns in zip(*parts, strict=True))
    return packed(own, top_token_ids, top_logprobs)


def _logits(model: Any, ids: torch.Tensor, output: Any, rows: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Logits of all but a prompt's last token, `rows` at a time: (index of the first, [rows, vocabulary]).

    By the model's own code, from the hidden states in `output`: some models scale or cap what the last layer says.
    """
    count = ids.size(1) - 1
    keeps = callable(getattr(model, "_supports_logits_to_keep", None)) and model._supports_logits_to_keep()
    whole: torch.Tensor | None = None
    for start in range(0, count, rows):
        end = min(start + rows, count)
        if whole is not None:
            yield start, whole[start:end]
        elif keeps:
            kept = torch.arange(start, end, device=ids.device)
            with _computed(model.base_model, output):
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0]
            yield start, logits
        else:
            hidden = output.last_hidden_state[:, start:end]
            with _computed(model.base_model, type(output)(**{**output, "last_hidden_state": hidden})):
                logits = model(input_ids=ids, use_cache=False).logits[0]
            if len(logits) == ids.size(1):  # the model did not ask its base
                whole = logits
            yield start, logits if whole is None else whole[start:end]


@contextlib.contextmanager
def _computed(base: Any, output: Any) -> Iterator[None]:
    """Let the module `base` answer with `output` instead of computing it again."""
    before = base.__dict__.get("forward")
    base.forward = lambda *args, **kwargs: output
    try:
        yield
    finally:
        if before is None:
            del base.forward
        else:
            base.forward = before
