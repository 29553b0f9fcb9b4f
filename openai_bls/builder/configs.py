"""Config files of a build: which of them it writes, and those that somebody has changed, which stay."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from openai_bls.builder.recipe import Recipe, Report
from openai_bls.builder.targets.selection import BuildTarget
from openai_bls.core import config_pbtxt
from openai_bls.core.manifest import BuildError, EngineLoadError, load_manifest
from openai_bls.core.settings import EngineSettings, SettingsError
from openai_bls.triton_models.repository.engine_configs import engine_model, render_configs
from openai_bls.triton_models.repository.engines import ENGINE
from openai_bls.triton_models.repository.start_check import check_engine


def new_configs(target: BuildTarget, recipe: Recipe, report: Report) -> dict[str, str]:
    """Files config.pbtxt of the recipe that are to be written.

    All of a further engine's, which belong to the build. Of the committed ones those whose settings have changed since
    the last build: until then a file stays, with whatever somebody wrote into it.
    """
    if target.generated:
        return recipe.configs
    changed = _last_settings(target, recipe) != settings_hash(recipe.configs)
    found = {}
    for model, path in target.configs.items():
        present = path.read_text(encoding="utf-8") if path.is_file() else None
        if present is None or (changed and present != recipe.configs[model]):
            found[model] = recipe.configs[model]
            report(f"{path}{' is replaced' if present is not None else ''}")
    if not changed:
        report_edited(target, recipe, report)
    return found


def report_edited(target: BuildTarget, recipe: Recipe, report: Report) -> None:
    """Say which config.pbtxt files somebody has changed since the last build: they stay, whatever was asked for.

    Raises:
        BuildError: the engine would not load with one of them.
    """
    for model, path in target.configs.items():
        if path.is_file() and _statements(path.read_text(encoding="utf-8")) != _statements(recipe.configs[model]):
            report(
                f"{path} was changed since the last build and stays as it is, settings included (change them "
                f"with openai-bls render --set {model}.NAME=VALUE)"
            )
            try:
                config = config_pbtxt.read(path)
                if model == target.model and config_pbtxt.text(config, "backend") == "python":
                    check_engine(model, recipe.manifest, config_pbtxt.parameters(config))
            except (SettingsError, ValueError) as error:
                raise BuildError(f"{path}, which somebody changed, does not go with this engine: {error}") from None


def _statements(config: str) -> list[str]:
    return [line for line in config.splitlines() if line.strip() and not line.startswith("#")]


def _last_settings(target: BuildTarget, recipe: Recipe) -> str:
    """Hash of the config.pbtxt files that the last build wrote; empty if there was none, or it was cut short."""
    try:
        manifest = load_manifest(target.version_dir)
    except EngineLoadError:
        return ""
    _, dash, settings = manifest.source.partition("-")
    if dash:
        return settings
    # Releases that only had the embedded engine wrote none: theirs are those of an engine without settings.
    suffix = target.model.removeprefix(ENGINE).removeprefix("_")
    return settings_hash(render_configs(engine_model(EngineSettings(), suffix=suffix)))


def settings_hash(configs: Mapping[str, str]) -> str:
    """Hash of config.pbtxt files, by which a later build sees that its settings are others."""
    return hashlib.sha256(repr(sorted(configs.items())).encode()).hexdigest()
