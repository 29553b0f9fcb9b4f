"""Check of rendered settings: what the next start of the server would refuse, by the engines that are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from openai_bls.core.manifest import EngineLoadError, Manifest, load_manifest
from openai_bls.core.settings import EngineSettings, OpenAiBlsSettings, SettingsError, load
from openai_bls.engines import registry
from openai_bls.output import detect
from openai_bls.triton_models.repository.engines import served_names
from openai_bls.triton_models.repository.foreign_backend import foreign_backends
from openai_bls.triton_models.tensors.declaration import Model
from openai_bls.triton_models.tensors.models import ENSEMBLE, OPENAI_BLS, TENSORRT_LLM, TENSORRT_LLM_BLS


def check_start(repository: Path, tables: Mapping[str, Model], models: Mapping[str, Model]) -> None:
    """Check the repository's models as they are about to be written.

    Args:
        repository: the model repository.
        tables: declarations of this release, by name.
        models: declarations with the choices of the operator, by name.

    Raises:
        SettingsError: the next start would refuse one, or leave it unready; one sentence.
    """
    names = served_names(repository)
    engines = {name: models[name] for name in names}
    for name, engine in engines.items():
        if engine.backend not in foreign_backends():
            try:
                manifest = load_manifest(repository / name / "1")
            except EngineLoadError:
                continue  # the start says what is wrong with it, or that there is none yet
            check_engine(name, manifest, engine.parameters)
    settings = load(OpenAiBlsSettings, models[OPENAI_BLS.name].parameters, {})
    _check_api(settings, engines)
    for name, served in names.items():
        if name != TENSORRT_LLM.name and (both := set(served) & set(settings.aliases)):
            raise SettingsError(f"{OPENAI_BLS.name}: model_aliases has {min(both)}, the name of the engine in {name}")
    for name, model in models.items():
        if bool(model.max_batch_size) != bool(tables[name].max_batch_size):
            kind = (
                "a number from 1, for it takes batches" if tables[name].max_batch_size else "0, for it takes no batches"
            )
            raise SettingsError(f"{name}: max_batch_size is {model.max_batch_size}, and must be {kind}")
        if not model.steps and model.instances < 1:
            raise SettingsError(f"{name}: instances is {model.instances}: a number from 1 is needed")
    for name in (ENSEMBLE.name, TENSORRT_LLM_BLS.name):
        # `tensorrt_llm_bls` is one around the C++ backend alone, and a model without steps has nothing to check.
        _check_ensemble(models[name], models)


def check_engine(name: str, manifest: Manifest, parameters: Mapping[str, str]) -> None:
    """Check the parameters in config.pbtxt of an engine of our own model.py.

    Raises:
        SettingsError: the engine of `manifest` would not load with one; one sentence.
    """
    settings = load(EngineSettings, parameters, {})
    try:
        check = registry.plugin(manifest.engine).check_settings
        if check is not None:
            check()(manifest, settings)
    except EngineLoadError as error:
        raise SettingsError(f"{name}: {error}") from None


def _check_api(settings: OpenAiBlsSettings, engines: Mapping[str, Model]) -> None:
    for setting in ("tool_call_parser", "reasoning_parser"):
        value: str = getattr(settings, setting)
        named = [part.partition("=")[0].strip() for part in value.split(",") if "=" in part]
        if unknown := [name for name in named if name not in engines]:
            raise SettingsError(
                f"{OPENAI_BLS.name}: {setting} names {unknown[0]}, which is none of {', '.join(engines)}"
            )
        for name in engines:
            try:
                detect.detect(None, **{setting: settings.format_for(value, name)})
            except (SettingsError, ValueError) as error:
                raise SettingsError(f"{OPENAI_BLS.name}: {error}") from None
    for name, model in engines.items():
        if settings.engine_transport == "exchange" and model.backend in foreign_backends():
            raise SettingsError(
                f"{OPENAI_BLS.name}: engine_transport is exchange, and {name}, of the C++ backend, has only grpc"
            )


def _check_ensemble(ensemble: Model, models: Mapping[str, Model]) -> None:
    for step in ensemble.steps:
        if step.model not in models:
            continue  # a preprocessing that is not ours
        most = models[step.model].max_batch_size
        if ensemble.max_batch_size > most:
            raise SettingsError(
                f"{ensemble.name}: max_batch_size is {ensemble.max_batch_size}, and that of its step {step.model} is "
                f"{most}: lower it too, --set {ensemble.name}.max_batch_size={most}"
            )
