"""Self-test of a prepared vLLM engine: loaded once as the server will load it, and its answers for the manifest."""

from __future__ import annotations

from openai_bls.builder.prepared_engine import loaded
from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.manifest import AnswerRecord, Manifest
from openai_bls.core.settings import TensorRtLlmSettings
from openai_bls.engines.answers import record
from openai_bls.engines.vllm.survey.interpreter import Survey


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
    with loaded(prepared, manifest, settings) as (engine, switch):
        return record(engine, switch, device=device_of(survey), dtype=survey.dtype)


def device_of(survey: Survey) -> str:
    """Device in the words of `AnswerRecord.device`."""
    if not survey.devices:
        return survey.device_type
    return f"{survey.devices[0].name} ({survey.devices[0].compute_capability})"
