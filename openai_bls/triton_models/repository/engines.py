"""Engines of the model repository, and the models that go with each.

::

    model_repository/
    ├── tensorrt_llm/           the default engine
    ├── preprocessing/          its prompts
    ├── openai_bls/1/tokenizer/ its tokenizer, for the output
    ├── tensorrt_llm_small/     a further engine, which `build/engine.py --name small` made
    ├── preprocessing_small/
    └── openai_bls/1/tokenizer_small/
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from openai_bls.core import config_pbtxt
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.manifest import MANIFEST_NAME, EngineLoadError, load_manifest
from openai_bls.core.settings import EngineSettings, OpenAiBlsSettings, SettingsError, load
from openai_bls.triton_models.repository.folders import ModelFolders
from openai_bls.triton_models.repository.foreign_backend import foreign_backends

logger = logging.getLogger(__name__)

ENGINE = "tensorrt_llm"
PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"
TENSORRT_LLM_BLS = "tensorrt_llm_bls"
_OPENAI_BLS = "openai_bls"
TOKENIZER = "tokenizer"

Transport = Literal["exchange", "grpc"]
PromptTransport = Literal["exchange", "bls"]

# Stands in every model.py that serves the prompt exchange.
_PROMPT_EXCHANGE = "PromptExchangeServer"


class Backend(msgspec.Struct, frozen=True):
    """The models behind one served model."""

    engine: str
    """Name of the Triton model that holds the engine."""
    preprocessing: str
    """Name of the one that prepares its prompts."""
    tokenizer_dir: Path
    engine_dir: Path = Path()
    """The engine's model folder."""
    transport: Transport = "exchange"
    """The exchange of our own model.py, or gRPC for the C++ backend, which has the official tensors alone."""
    preprocessing_dir: Path = Path()
    """The model folder of `preprocessing`."""
    prompt_transport: PromptTransport = "exchange"
    """The exchange of our own model.py, or BLS calls of any other `preprocessing`."""


def with_suffix(name: str, suffix: str) -> str:
    """The name of what belongs to the engine with `suffix`, which is empty for the default one."""
    return f"{name}_{suffix}" if suffix else name


def backends(folders: ModelFolders, openai_bls_dir: Path, version: str) -> list[Backend]:
    """The default engine's, whether it is there or not, then those of all further engines by name.

    Args:
        folders: folders of the models.
        openai_bls_dir: the one of `openai_bls`.
        version: the version folder to look into.
    """
    found = []
    for suffix in ("", *folders.suffixes(ENGINE, TOKENIZER)):
        engine, preprocessing = with_suffix(ENGINE, suffix), with_suffix(PREPROCESSING, suffix)
        found.append(
            Backend(
                engine,
                preprocessing,
                openai_bls_dir / version / with_suffix(TOKENIZER, suffix),
                folders.of(engine),
                _transport(folders.of(engine)),
                folders.of(preprocessing),
                prompt_transport(folders.of(preprocessing)),
            )
        )
    return found


def excludes_input(backend: Backend, environ: Mapping[str, str]) -> bool:
    """The setting `exclude_input_in_output` of an engine of our own model.py, which the models around it share.

    Raises:
        SettingsError: a bad value, or an engine of the C++ backend.
    """
    if backend.transport == "grpc":
        raise SettingsError(
            f"{backend.engine} is of the C++ backend, for which this model's config.pbtxt must be another: run "
            "`openai-bls render`"
        )
    name = "exclude_input_in_output"
    given = {key: value for key, value in _parameters(backend.engine_dir).items() if key == name}
    return load(EngineSettings, given, environ).exclude_input_in_output


def openai_bls_settings(openai_bls_dir: Path, environ: Mapping[str, str]) -> OpenAiBlsSettings:
    """Settings of the model `openai_bls`, for the others that go by them.

    Raises:
        OSError: its config.pbtxt cannot be read.
        ValueError: it is not of that format.
        SettingsError: a bad value.
    """
    config = config_pbtxt.read(openai_bls_dir / "config.pbtxt")
    return load(OpenAiBlsSettings, config_pbtxt.parameters(config), environ)


def engine_settings(engine_dir: Path, environ: Mapping[str, str]) -> EngineSettings:
    """Settings of a model of ours that runs an engine.

    Raises:
        OSError: its config.pbtxt cannot be read.
        ValueError: it is not of that format.
        SettingsError: a bad value.
    """
    config = config_pbtxt.read(engine_dir / "config.pbtxt")
    return load(EngineSettings, config_pbtxt.parameters(config), environ)


def has_keys(settings: OpenAiBlsSettings) -> bool:
    """True if requests of /v1 must have an API key."""
    return bool(settings.api_key or settings.api_keys_file)


def triton_keys(settings: OpenAiBlsSettings) -> ApiKeys:
    """API keys of which requests on Triton's endpoints must have one, by the settings of `openai_bls`.

    Raises:
        ApiKeysError: the file of keys cannot be used.
    """
    return ApiKeys.of(settings) if settings.triton_requires_key else ApiKeys()


class TritonKeys:
    """API keys of a Triton model, by the settings of `openai_bls`; where there is none, by the environment alone.

    `openai_bls` and `tensorrt_llm_bls` reach that model over the exchange, without a key, and an ensemble hands the
    parameters of its request, and with them the key, on to each of its steps.

    Args:
        folders: folders of the models.
        environ: environment of the model.

    Raises:
        SettingsError: the settings, or the file of keys, cannot be used.
    """

    def __init__(self, folders: ModelFolders, environ: Mapping[str, str]) -> None:
        self._folders = folders
        self._environ = environ
        self._known, self._final = self._read()

    def __call__(self) -> ApiKeys:
        """The keys as far as they are known: `openai_bls` may be loaded later.

        Raises:
            SettingsError: its settings cannot be used.
        """
        if not self._final and self._folders.find(_OPENAI_BLS) is not None:
            self._known, self._final = self._read()
        return self._known

    def _read(self) -> tuple[ApiKeys, bool]:
        folder = self._folders.find(_OPENAI_BLS)
        try:
            if folder is not None and (folder / "config.pbtxt").is_file():
                return triton_keys(openai_bls_settings(folder, self._environ)), True
            return triton_keys(load(OpenAiBlsSettings, {}, self._environ)), self._folders.settled
        except (OSError, ValueError) as error:
            raise SettingsError(f"the API keys cannot be read: {error}") from None


def served_names(repository: Path) -> dict[str, list[str]]:
    """Name of each engine's Triton model → the names under which the API serves it, adapters left out.

    The aliases are those of `openai_bls`'s config.pbtxt. An engine that is not there has no name of its own.
    """
    names = {}
    for suffix in ("", *_further(repository)):
        model = with_suffix(ENGINE, suffix)
        found = [] if suffix else _aliases(repository)
        for manifest in sorted((repository / model).glob(f"*/{MANIFEST_NAME}")):
            try:
                found.append(load_manifest(manifest.parent).model_name)
            except EngineLoadError:
                # Its own build, or the server, says what is wrong with it.
                continue
        names[model] = found
    return names


def prompt_transport(preprocessing_dir: Path) -> PromptTransport:
    """`exchange` where the model.py of the newest version serves the prompt exchange, as ours does; else `bls`."""
    versions = [path for path in preprocessing_dir.glob("*/model.py") if path.parent.name.isdigit()]
    if not versions:
        # Of another backend, or an ensemble; or not there (yet).
        return "exchange" if _backend(preprocessing_dir) in ("", "python") else "bls"
    newest = max(versions, key=lambda path: int(path.parent.name))
    return "exchange" if _PROMPT_EXCHANGE in newest.read_text(encoding="utf-8", errors="replace") else "bls"


def _transport(engine_dir: Path) -> Transport:
    named = _backend(engine_dir)
    # Most engines are run by our own model.py, and the plug-ins of all cost memory and time.
    return "grpc" if named not in ("", "python") and named in foreign_backends() else "exchange"


def _backend(model_dir: Path) -> str:
    """Name of a model's backend, or of its platform; empty if it is not there (yet), or tells none."""
    try:
        config = config_pbtxt.read(model_dir / "config.pbtxt")
    except OSError:
        return ""
    except ValueError as error:
        # Triton says so too, when it loads the model.
        logger.warning("%s/config.pbtxt is not readable: %s", model_dir.name, error)
        return ""
    return config_pbtxt.text(config, "backend") or config_pbtxt.text(config, "platform")


def _further(repository: Path) -> list[str]:
    """Names of the further engines."""
    found = sorted(repository.glob(f"{ENGINE}_*/*/{MANIFEST_NAME}"))
    return list(dict.fromkeys(path.parent.parent.name.removeprefix(f"{ENGINE}_") for path in found))


def _aliases(repository: Path) -> list[str]:
    given = _parameters(repository / "openai_bls").get("model_aliases", OpenAiBlsSettings().model_aliases)
    return list(OpenAiBlsSettings(model_aliases=given).aliases)


def _parameters(model_dir: Path) -> dict[str, str]:
    """Parameters in a model's config.pbtxt; none if it cannot be read, and then the server says why."""
    try:
        return config_pbtxt.parameters(config_pbtxt.read(model_dir / "config.pbtxt"))
    except (OSError, ValueError):
        return {}
