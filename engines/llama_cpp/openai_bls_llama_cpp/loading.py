"""Loader of the llama.cpp engine: the GGUF file in the engine's folder, opened by the installed llama.cpp."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from openai_bls.core.checkpoint import GGUF_NAME, read_checkpoint
from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.manifest import BUILD_HINT, EngineLoadError, Manifest, checkpoint_dir, short
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import answers
from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls.engines.engine_info import engine_info
from openai_bls.engines.grammars import llguidance_backend
from openai_bls_llama_cpp import library, memory
from openai_bls_llama_cpp.engine import LlamaCppEngine
from openai_bls_llama_cpp.model import MAX_PLACES, STEP_TOKENS, LlamaModel
from openai_bls_llama_cpp.options import LlamaCppOptions, with_settings
from openai_bls_llama_cpp.record import LlamaCppRecord

logger = logging.getLogger(__name__)

FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("stop_token_ids", "stop_words", "bad_words", "min_tokens", "logprobs"),
)
"""Fields of requests that this engine honours; `engine_info` adds `grammar` where llguidance is installed."""


def load(
    version_dir: Path,
    manifest: Manifest,
    settings: EngineSettings,
    on_step: StepListener,
    options: LlamaCppOptions,
) -> Engine:
    """The engine that lies in `version_dir`, loaded and ready.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    options = with_settings(options, settings)
    checkpoint = checkpoint_dir(version_dir, manifest, hashes=bool(settings.verify_weights))
    file = checkpoint / GGUF_NAME
    if not file.is_file():
        raise EngineLoadError(f"{short(checkpoint)} has no {GGUF_NAME}, which llama.cpp reads: {BUILD_HINT}")
    facts = read_checkpoint(checkpoint)
    manifest = options.over(manifest)
    places = manifest.max_batch_size
    if places > MAX_PLACES:
        raise EngineLoadError(f"max_batch_size is {places}: llama.cpp holds at most {MAX_PLACES} sequences")
    cache = memory.kv_cache(manifest, facts, file)
    model = LlamaModel(file, places, cache, options.threads)
    facts = msgspec.structs.replace(facts, vocab_size=min(facts.vocab_size, model.vocab_size))
    grammars = llguidance_backend.load(version_dir / "tokenizer", facts.vocab_size, facts.eos_token_ids)
    info = engine_info(
        manifest,
        facts,
        version=f"{library.RELEASE.rpartition('.')[2]} ({library.PACKAGE} {library.RELEASE})",
        supported=FIELDS,
        max_logprobs=min(MAX_LOGPROBS, facts.vocab_size),
        grammar_backend="" if grammars is None else grammars.backend,
        max_num_tokens=STEP_TOKENS,
    )
    logger.info(
        "loaded %s by llama.cpp: %s, %d threads, KV cache of %s",
        manifest.model_name, model.description, options.threads, memory.described(cache, places, facts),
    )  # fmt: skip
    listener = answers.Switch(on_step)
    engine = LlamaCppEngine(model, info, grammars, listener, sharing=options.prefix_sharing)
    try:
        _compare(engine, listener, manifest)
    except BaseException:
        engine.close()
        raise
    return engine


def _compare(engine: LlamaCppEngine, listener: answers.Switch, manifest: Manifest) -> None:
    """Compare the engine's answers with those of its build.

    Raises:
        EngineLoadError: they differ by more than rounding.
    """
    recorded = LlamaCppRecord.of(manifest).answers
    if recorded is not None:
        answers.require_same(engine, listener, recorded, device="cpu")
        engine.reset_prefix_cache()
