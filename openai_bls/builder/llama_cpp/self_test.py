"""Self-test of a prepared llama.cpp engine: loaded as the server will load it, and asked together and one by one."""

from __future__ import annotations

import os

import msgspec

from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.engine import Engine
from openai_bls.core.manifest import (
    AnswerRecord,
    BuildError,
    EngineLoadError,
    LlamaCppRecord,
    Manifest,
    write_manifest,
)
from openai_bls.core.settings import TensorRtLlmSettings, engine_overrides
from openai_bls.engines import answers
from openai_bls.engines.answers import Switch
from openai_bls.transport.engine_process.loading import load_engine

_SKIP = "--no-self-test leaves it out"
DTYPE = "llama.cpp"
"""`AnswerRecord.dtype`: the file's own types, computed with as llama.cpp does."""


def self_test(prepared: Prepared, manifest: Manifest) -> LlamaCppRecord:
    """Record of the prepared engine with its golden answers, from a process that is started for them.

    Args:
        prepared: folders of the engine, which are full.
        manifest: manifest of the engine, without files.

    Raises:
        BuildError: it does not load, does not answer, or answers otherwise when it is asked for one thing at a time.
    """
    folder = prepared.work.resolve()
    for name, target in ((manifest.checkpoint, prepared.checkpoint), ("tokenizer", prepared.tokenizers[0])):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target.resolve())
    write_manifest(folder, manifest)
    switch = Switch(lambda _: None)
    overrides = {name: value for name, value in engine_overrides(os.environ).items() if name != "engine"}
    try:
        engine = load_engine(folder, switch, overrides, TensorRtLlmSettings()).engine
    except EngineLoadError as error:
        raise BuildError(f"the engine does not pass its self-test: {error} ({_SKIP})") from None
    try:
        together = answers.record(engine, switch, device="cpu", dtype=DTYPE)
        _require_same_alone(engine, switch, together)
    except EngineLoadError as error:
        raise BuildError(f"{error} ({_SKIP})") from None
    finally:
        engine.close()
    assert manifest.llama_cpp is not None
    return msgspec.structs.replace(manifest.llama_cpp, answers=together)


def _require_same_alone(engine: Engine, switch: Switch, together: AnswerRecord) -> None:
    """Ask each prompt by itself, with nothing of it computed before.

    Raises:
        EngineLoadError: an answer is another one, by more than rounding.
    """
    token_ids, logprobs = [], []
    for prompt in together.prompts:
        engine.reset_prefix_cache()
        found = answers.ask(engine, switch, [prompt])
        token_ids.append(found.token_ids[0])
        logprobs.append(found.logprobs[0])
    if problem := answers.difference(together, token_ids, logprobs):
        raise EngineLoadError(
            f"the engine failed its self-test: sequences of one step do not get the answers that each gets alone "
            f"({problem})"
        )
