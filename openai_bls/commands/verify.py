"""Command `verify`: a built engine, checked outside Triton."""

from __future__ import annotations

import argparse
import os
import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from openai_bls.commands.options import add_repository, repository
from openai_bls.core import config_pbtxt, settings
from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.engine_types import GenerationRequest, PromptRequest, SamplingParams, TokenDelta
from openai_bls.core.manifest import (
    BUILD_HINT,
    ENGINE_FOLDER,
    EngineLoadError,
    Manifest,
    check_files,
    load_manifest,
    short,
)
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import registry
from openai_bls.output.detect import chat_template
from openai_bls.output.detokenizer import factory
from openai_bls.output.detokenizer.base import DetokenizerFactory
from openai_bls.transport.engine_process.loading import load_engine as load_in_its_place
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from openai_bls.triton_models.repository.engines import ENGINE, PREPROCESSING, TOKENIZER, with_suffix
from openai_bls.triton_models.repository.foreign_backend import foreign_backend

VERSION = "1"

_DESCRIPTION = """\
Check of a built engine outside Triton: compare its files with what was built, load it, ask it one chat question.

    openai-bls verify
    openai-bls verify --prompt "What is a transformer?" --max-tokens 128
    openai-bls verify --name small

Prints the prompt as the chat template writes it, the answer while it comes, and how fast that was. Each token of it is
the likeliest. Settings come from the model's config.pbtxt and the environment, as in the server. An
engine for Triton's C++ backend is loaded by TensorRT-LLM's LLM API here. The exit code is 0 if there was an answer.

The whole engine is read to compare hashes, which takes a minute for each 100 GB or so; --no-hashes leaves it out.
"""


class VerifyError(Exception):
    """The engine does not do what it should; the message is one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_repository(parser)
    parser.add_argument("--name", default="", help="of a further engine (default: the default engine)")
    parser.add_argument("--prompt", default="Who are you?", help="what the user says")
    parser.add_argument("--system", help="the system message")
    parser.add_argument("--max-tokens", type=int, default=64, help="of the answer")
    parser.add_argument("--no-hashes", dest="hashes", action="store_false", help="compare files by size alone")


def run(given: argparse.Namespace) -> int:
    """Verify an engine; returns the exit status."""
    if given.max_tokens < 1:
        given.parser.error("--max-tokens must be at least 1")
    try:
        verify(given)
    except (EngineLoadError, settings.SettingsError, VerifyError) as error:
        print(f"{given.parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


def verify(given: argparse.Namespace) -> None:
    """Compare files, load the engine and ask it; raises what `run` prints."""
    folder = repository(given)
    model_dir = folder / with_suffix(ENGINE, given.name)
    version_dir = model_dir / VERSION
    manifest = load_manifest(version_dir)
    if given.hashes:
        checked = ((manifest.checkpoint, manifest.files), (ENGINE_FOLDER, manifest.engine_files))
        size = sum(check_files(version_dir / folder, files, hashes=True) for folder, files in checked)
        count = sum(len(files) for _, files in checked)
        print(f"files: {count}, {size / 1e6:,.1f} MB, as they were built", flush=True)
    # Before the engine, which takes longer to load.
    preprocessing = folder / with_suffix(PREPROCESSING, given.name) / VERSION / TOKENIZER
    prompt = encode(preprocessing, given.prompt, given.system)
    detokenizers = load_detokenizers(folder / "openai_bls" / VERSION / with_suffix(TOKENIZER, given.name))
    deltas: queue.SimpleQueue[TokenDelta] = queue.SimpleQueue()
    began = time.monotonic()
    engine = load_engine(model_dir, manifest, lambda step: put_all(deltas, step))
    try:
        info = engine.info
        print(
            f"engine: {info.model_name} by {info.version}, {info.max_model_len} tokens, {info.max_batch_size} "
            f"sequences, loaded in {time.monotonic() - began:.1f} s"
        )
        print(f"prompt, {len(prompt)} tokens:\n{detokenizers.decode(prompt)}\nanswer:", flush=True)
        print(ask(engine, prompt, given.max_tokens, deltas, detokenizers))
    finally:
        engine.close()


def put_all(deltas: queue.SimpleQueue[TokenDelta], step: Sequence[TokenDelta]) -> None:
    """Queue the deltas of a step."""
    for delta in step:
        deltas.put(delta)


def encode(tokenizer_dir: Path, prompt: str, system: str | None) -> list[int]:
    """Token ids of a conversation that `prompt` begins, through the chat template as preprocessing does it; of the bare
    text for a model that has none."""
    if not tokenizer_dir.is_dir():
        raise VerifyError(f"{short(tokenizer_dir)} is missing: {BUILD_HINT}")
    encoder = PromptEncoder(tokenizer_dir)
    if chat_template(tokenizer_dir) is None:
        print("the model has no chat template: the prompt goes in as it stands")
        request = PromptRequest(prompts=[f"{system}\n\n{prompt}" if system else prompt])
    else:
        messages = [{"role": "system", "content": system}] if system else []
        request = PromptRequest(messages=[*messages, {"role": "user", "content": prompt}])
    result = encoder.prepare(request)
    if result.error is not None:
        raise VerifyError(result.error)
    return result.prompt_token_ids[0]


def load_detokenizers(tokenizer_dir: Path) -> DetokenizerFactory:
    """Detokenizers of a tokenizer; raises `VerifyError`."""
    try:
        return factory.load(tokenizer_dir)
    except (OSError, ValueError):
        raise VerifyError(f"{short(tokenizer_dir)} holds no tokenizer.json that can be read: {BUILD_HINT}") from None


def load_engine(model_dir: Path, manifest: Manifest, on_step: StepListener) -> Engine:
    """The engine of the Triton model in `model_dir`, as the server would load it.

    Raises:
        EngineLoadError: it does not load.
        SettingsError: config.pbtxt or the environment has a setting that does not exist.
    """
    version_dir = model_dir / VERSION
    model_settings = read_settings(model_dir / "config.pbtxt", manifest)
    foreign = foreign_backend(manifest)
    if foreign is not None:
        load = registry.plugin(manifest.engine).load()
        return load(version_dir, foreign.without(manifest), model_settings, on_step)
    overrides = settings.engine_overrides(os.environ)
    return load_in_its_place(version_dir, on_step, overrides, model_settings).engine


def read_settings(config: Path, manifest: Manifest) -> EngineSettings:
    """Settings of config.pbtxt, if there is one; of a foreign backend's parameters those that the loader has too.

    Raises:
        SettingsError: it has one that does not exist, or so has the environment.
    """
    try:
        parameters = config_pbtxt.parameters(config_pbtxt.read(config)) if config.is_file() else {}
    except config_pbtxt.ConfigTextError as error:
        raise settings.SettingsError(f"{short(config)} is not readable: {error}") from None
    foreign = foreign_backend(manifest)
    if foreign is None:
        return settings.load(EngineSettings, parameters, os.environ)
    return foreign.engine_settings(settings.load(foreign.settings, parameters, os.environ))


def ask(
    engine: Engine,
    prompt: list[int],
    max_tokens: int,
    deltas: queue.SimpleQueue[TokenDelta],
    detokenizers: DetokenizerFactory,
) -> str:
    """Print the answer as it comes; returns a line about its length and speed.

    Raises:
        VerifyError: the engine answered with an error, or with nothing.
    """
    text = detokenizers.new(prompt_token_ids=prompt)
    began = time.monotonic()
    engine.submit(
        GenerationRequest(
            request_id=1,
            prompt_token_ids=prompt,
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature=0),
            stop_token_ids=engine.info.eos_token_ids,
        )
    )
    count = first_count = 0
    first_at = last_at = began
    while True:
        delta = deltas.get()
        if delta.token_ids:
            last_at = time.monotonic()
            if not count:
                first_at, first_count = last_at, len(delta.token_ids)
            count += len(delta.token_ids)
            print(text.push(delta.token_ids), end="", flush=True)
        if delta.finish_reason is not None:
            break
    print(text.finish())
    if delta.error is not None:
        raise VerifyError(f"the engine failed: {delta.error}")
    if delta.finish_reason not in ("stop", "length"):
        raise VerifyError("the engine cancelled the request by itself")
    if not count:
        raise VerifyError("the engine answered with no token but the one that ends the answer")
    line = f"{count} tokens, {delta.finish_reason}; the first after {(first_at - began) * 1000:.0f} ms"
    if last_at > first_at:
        line += f", then {(count - first_count) / (last_at - first_at):.1f} tokens/s"
    return line
