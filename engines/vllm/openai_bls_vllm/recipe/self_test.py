"""Self-test of a prepared vLLM engine: loaded once as the server will load it, and its answers for the manifest."""

from __future__ import annotations

import msgspec

from openai_bls.builder.prepared_engine import loaded
from openai_bls.builder.recipe import Report
from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.engine import Engine
from openai_bls.core.manifest import AnswerRecord, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.answers import NEW_TOKENS, Switch, ask_requests, record, requests, require_numbers
from openai_bls.engines.images import prompts as image_prompts
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls_vllm.survey.interpreter import Survey

_SIDE = 64
"""Pixels of the side of each image of a prompt that holds as many as it may."""


def self_test(
    prepared: Prepared, manifest: Manifest, settings: EngineSettings, survey: Survey, report: Report
) -> AnswerRecord:
    """Golden answers of the prepared engine, from a process that is started for them.

    Where the model takes images it answers prompts with some too: vLLM must read as many tokens for each as
    `preprocessing` counts, or such a request fails. These answers are not recorded.

    Args:
        prepared: folders of the engine, which are full.
        manifest: manifest of the engine, without files; it names the interpreter.
        settings: settings of config.pbtxt.
        survey: survey of that interpreter.
        report: takes a line.

    Raises:
        BuildError: it does not load, or does not answer; one sentence.
    """
    with loaded(prepared, manifest, settings) as (engine, switch):
        found = record(engine, switch, device=device_of(survey), dtype=survey.dtype)
        if manifest.max_images:
            most = ask_with_images(engine, switch, VisionProcessor(prepared.tokenizers[0]))
            report(f"self-test: it reads images, {most} of them in a prompt")
        return found


def ask_with_images(engine: Engine, switch: Switch, processor: VisionProcessor) -> int:
    """Ask an engine about pictures, in prompts with one, two, and as many as it takes and its context has room for.

    Args:
        engine: engine whose listener is `switch`.
        switch: the engine's listener.
        processor: processor of the model.

    Returns:
        Most images of a prompt that was answered.

    Raises:
        EngineLoadError: it does not answer one of them, or with something that is no number.
    """
    info = engine.info
    prompts = image_prompts.make(processor, info, NEW_TOKENS)
    full = image_prompts.prompt(processor, ((_SIDE, _SIDE),) * info.max_images)
    if len(full.token_ids) + NEW_TOKENS <= info.max_model_len:
        prompts.append(full)
    todo = requests(info, [prompt.token_ids for prompt in prompts])
    with_images = [
        msgspec.structs.replace(request, media=prompt.media) for request, prompt in zip(todo, prompts, strict=True)
    ]
    require_numbers(ask_requests(engine, switch, with_images))
    return max(len(prompt.media.images) for prompt in prompts)


def device_of(survey: Survey) -> str:
    """Device in the words of `AnswerRecord.device`."""
    if not survey.devices:
        return survey.device_type
    return f"{survey.devices[0].name} ({survey.devices[0].compute_capability})"
