"""Loader of speculative decoding: its settings, and the draft model of an engine, tried out first."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import msgspec
import torch

from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.manifest import EngineLoadError, Manifest, check_files, first_line
from openai_bls.embedded.gpu import paged_attention
from openai_bls.embedded.model import fused_layers, model_loader
from openai_bls.embedded.options import EngineOptions, speculative_method
from openai_bls.embedded.speculation import draft_cache
from openai_bls.embedded.speculation.draft_model import MOST_SLOTS, DraftModel, Wanted
from openai_bls.embedded.speculation.drafter import SpeculationConfig
from openai_bls.embedded.speculation.speculation import has_full_attention

logger = logging.getLogger(__name__)

_TRIAL_TOKENS = 160
"""Enough for every kind of pass."""
_TRIED_GUESSES = 32
_LEAST_SAME = 0.5
"""Share of the trial's guesses that are the plain model's; near ties of half precision turn some."""


def speculation_config(
    version_dir: Path, manifest: Manifest, options: EngineOptions, device: torch.device, vocab_size: int
) -> SpeculationConfig | None:
    """Speculative decoding as asked for, with the draft model loaded and its memory taken; None if it is off.

    Args:
        version_dir: the folder that `manifest` lies in.
        manifest: manifest of the engine.
        options: start-up options, which override the manifest.
        device: device of the engine's model.
        vocab_size: size of the engine's vocabulary.

    Raises:
        EngineLoadError: settings exclude each other, or the draft model does not load or cannot be run.
    """
    method = speculative_method(options, manifest)
    if not method:
        return None
    shortest, longest = options.prompt_lookup_min, options.prompt_lookup_max
    if shortest > longest:
        raise EngineLoadError(f"prompt_lookup_min is {shortest}, above prompt_lookup_max {longest}")
    config = SpeculationConfig(
        num_tokens=options.num_speculative_tokens,
        # A short n-gram may have stood before by chance: a draft model knows more.
        lookup_min=shortest if method == "ngram" else longest,
        lookup_max=longest,
        max_batch_size=options.speculative_disable_by_batch_size,
    )
    if method == "ngram":
        return config
    return dataclasses.replace(config, draft_model=_load(version_dir, manifest, options, device, vocab_size))


def _load(
    version_dir: Path, manifest: Manifest, options: EngineOptions, device: torch.device, vocab_size: int
) -> DraftModel:
    slots = options.speculative_disable_by_batch_size
    if slots > MOST_SLOTS:
        raise EngineLoadError(
            f"speculative_disable_by_batch_size is {slots}: a draft model guesses for {MOST_SLOTS} sequences at most"
        )
    folder = version_dir / manifest.draft_checkpoint
    try:
        check_files(folder, manifest.draft_files, hashes=options.verify_weights)
        facts = read_checkpoint(folder)
        # As it is: no quantization, no adapters.
        model = model_loader.read_model(folder, msgspec.structs.replace(manifest, quant=""), device, "sdpa")
    except EngineLoadError as error:
        raise EngineLoadError(f"the draft model: {error}") from None
    if not has_full_attention(model.config):
        raise EngineLoadError(
            "the draft model cannot be used: not all of its layers have full attention, and its cache has no other"
        )
    graphs = device.type == "cuda" and options.cuda_graphs is not False
    graphs = graphs and paged_attention.refusal(model, "paged") is None
    max_length = min(manifest.max_model_len, facts.max_position_embeddings or manifest.max_model_len)
    known = min(vocab_size, facts.vocab_size)
    prompt = torch.randint(known, (min(_TRIAL_TOKENS, max_length),), generator=torch.Generator().manual_seed(0))
    try:
        wanted = _plain_guesses(model, prompt, known)[-_TRIED_GUESSES:]
        draft_cache.use(model)
        if graphs:
            logger.info("draft model, fused operations: %s", fused_layers.fuse(model))
        made = DraftModel(
            model,
            vocab_size=vocab_size,
            slots=slots,
            max_length=max_length,
            most_guesses=options.num_speculative_tokens,
            graphs=graphs,
        )
        same = _share_of(made, prompt.tolist(), wanted)
    except Exception as error:  # of a model's own code, above all
        logger.exception("the draft model failed")
        raise EngineLoadError(f"the draft model cannot be run: {first_line(error)}") from None
    if same < _LEAST_SAME:
        raise EngineLoadError(
            f"the draft model cannot be run: {same:.0%} of its guesses are those of its plain forward pass"
        )
    logger.info("draft model: %s, up to %d tokens%s", folder.name, max_length, ", by CUDA graphs" if graphs else "")
    return made


def _share_of(made: DraftModel, prompt: list[int], wanted: list[int]) -> float:
    """Share of the guesses at the last places of a prompt that are the wanted ones."""
    ends = range(len(prompt) - len(wanted) + 1, len(prompt) + 1)
    found = [made.guess([Wanted("trial", prompt[:end], 1)], {"trial"})[0] for end in ends]
    made.guess([], ())
    same: list[bool] = [guess == [right] for guess, right in zip(found, wanted, strict=True)]
    return sum(same) / len(same)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _plain_guesses(model: Any, prompt: torch.Tensor, vocab_size: int) -> list[int]:
    """The greedy next token at each place of a prompt, by transformers' own forward pass."""
    logits = model(input_ids=prompt[None].to(model.device), use_cache=False).logits
    guesses: list[int] = logits[0, :, :vocab_size].argmax(-1).tolist()
    return guesses
