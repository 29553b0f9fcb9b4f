"""Self-test of a prepared vLLM engine: loaded once as the server will load it, and its answers for the manifest."""

from __future__ import annotations

import os

from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.manifest import AnswerRecord, BuildError, EngineLoadError, Manifest, write_manifest
from openai_bls.core.settings import TensorRtLlmSettings, engine_overrides
from openai_bls.engines.answers import Switch, record
from openai_bls.engines.vllm.survey.interpreter import Survey
from openai_bls.transport.engine_process.loading import load_engine

_SKIP = "--no-self-test leaves it out"


def self_test(prepared: Prepared, manifest: Manifest, settings: TensorRtLlmSettings, survey: Survey) -> AnswerRecord:
    """Golden answers of the prepared engine, from a process that is started for them.

    Args:
        prepared: folders of the engine, which are full.
        manifest: manifest of the engine, without files; it names the interpreter.
        settings: settings of config.pbtxt.
        survey: survey of that interpreter.

    Raises:
        BuildError: it does not load, or does not answer; one sentence.
    """
    folder = prepared.work.resolve()
    for name, target in (
        (manifest.checkpoint, prepared.checkpoint),
        ("lora", prepared.lora),
        ("tokenizer", prepared.tokenizers[0]),
    ):
        (folder / name).symlink_to(target.resolve())
    write_manifest(folder, manifest)
    switch = Switch(lambda _: None)
    overrides = {name: value for name, value in engine_overrides(os.environ).items() if name != "engine"}
    try:
        engine = load_engine(folder, switch, overrides, settings).engine
    except EngineLoadError as error:
        raise BuildError(f"the engine does not pass its self-test: {error} ({_SKIP})") from None
    try:
        return record(engine, switch, device=device_of(survey), dtype=survey.dtype)
    finally:
        engine.close()


def device_of(survey: Survey) -> str:
    """Device in the words of `AnswerRecord.device`."""
    if not survey.devices:
        return survey.device_type
    return f"{survey.devices[0].name} ({survey.devices[0].compute_capability})"
