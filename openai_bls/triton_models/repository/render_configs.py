"""Renderer of a repository's config.pbtxt files, with their values and those given (`openai-bls render`).

What the tables of this release declare comes from them; what is the operator's to choose is read from the file that is
there: parameters, the number of instances, Triton's queue, `max_batch_size`. So it may run again and again, and after
an upgrade. It refuses what it does not know: in a file, since it would be lost, and among the values given.

The C++ backend finds its engine by an absolute path. Where a repository was copied or moved with an engine in it, the
path is made that of its new place; a path to an engine outside the repository stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import text_format
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.nearest import meant_or_known
from openai_bls.core.settings import (
    BACKEND_PARAMETERS,
    EngineSettings,
    OpenAiBlsSettings,
    PreprocessingSettings,
    SettingsError,
    TensorRtLlmBlsSettings,
    load,
)
from openai_bls.triton_models.repository.engines import prompt_transport, served_names
from openai_bls.triton_models.repository.foreign_backend import foreign_backends
from openai_bls.triton_models.repository.official_names import instead
from openai_bls.triton_models.repository.start_check import check_start
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Model, Queue
from openai_bls.triton_models.tensors.models import (
    ENSEMBLE,
    MODELS,
    OPENAI_BLS,
    PREPROCESSING,
    TENSORRT_LLM,
    TENSORRT_LLM_BLS,
)
from openai_bls.triton_models.tensors.models import ensemble as ensemble_around
from openai_bls.triton_models.tensors.models import tensorrt_llm_bls as bls_around

_SETTINGS: dict[str, type[msgspec.Struct]] = {
    OPENAI_BLS.name: OpenAiBlsSettings,
    PREPROCESSING.name: PreprocessingSettings,
    TENSORRT_LLM.name: EngineSettings,
    TENSORRT_LLM_BLS.name: TensorRtLlmBlsSettings,
}
_FIELDS = {
    "name", "backend", "platform", "max_batch_size", "input", "output", "instance_group", "parameters",
    "model_transaction_policy", "dynamic_batching", "ensemble_scheduling",
}  # fmt: skip
_NUMBERS = ("instances", "max_batch_size", "max_queue_delay_microseconds", "max_queue_size")
"""Settings in addition to a model's parameters."""
_DECOUPLED_MODE = "decoupled_mode"
"""The official name of `Model.decoupled`, a setting of engines, and a parameter of `tensorrt_llm_bls`."""
_AROUND_THE_ENGINE = (ENSEMBLE.name, TENSORRT_LLM_BLS.name)
_OF_THE_QUEUE = ("max_queue_delay_microseconds", "max_queue_size")


class _Chosen(msgspec.Struct, frozen=True):
    """Choices of the operator for a model."""

    backend: str = "python"
    parameters: dict[str, str] = {}
    numbers: dict[str, int] = {}
    """Numbers by the names in `_NUMBERS`."""
    decoupled: bool | None = None
    """Value of `Model.decoupled`; None keeps the table's."""


def configure(repository: Path, changes: Iterable[str] = ()) -> list[Path]:
    """Write every config.pbtxt below `repository`; returns the files that changed.

    Nothing is written unless everything can be.

    Args:
        repository: the model repository.
        changes: `MODEL.NAME=VALUE` each, where NAME is a parameter of the model, `instances`, `max_batch_size`,
            `max_queue_delay_microseconds`, `max_queue_size` or, of an engine and `tensorrt_llm_bls`, `decoupled_mode`.
            An empty VALUE takes a parameter out of the file.

    Raises:
        SettingsError: a change or a file that is not understood, or a file that cannot be read or written; one
            sentence.
    """
    try:
        return _write(_rendered(repository, changes))
    except OSError as error:
        raise SettingsError(
            f"{error.filename} cannot be read and written ({error.strerror}): mount it writable, or run this"
            " as its owner"
        ) from None


def _rendered(repository: Path, changes: Iterable[str]) -> dict[Path, str]:
    """The text of every config.pbtxt."""
    tables = _tables(repository)
    wanted = _parsed_changes(changes, tables)
    texts: dict[Path, str] = {}
    rendered: dict[str, Model] = {}
    # Those around the engine last: they depend on it.
    for name, table in sorted(tables.items(), key=lambda item: item[0] in _AROUND_THE_ENGINE):
        path = repository / name / "config.pbtxt"
        given = wanted.get(name, {})
        there = _read(path, table)
        is_engine = _base(name) == TENSORRT_LLM.name
        chosen = _merged(there, given, is_engine=is_engine)
        if is_engine:
            _check_engine(name, there, chosen, given)
            if chosen.backend in foreign_backends():
                chosen = _with_own_paths(path.parent, chosen, given)
        base = table
        if name in _AROUND_THE_ENGINE:
            engine = rendered[TENSORRT_LLM.name]
            base = ensemble_around(name, engine) if name == ENSEMBLE.name else bls_around(engine)
        if base.steps:
            if not table.steps:
                # An ensemble for this engine, a separate model for others, whose choices end here.
                if _DECOUPLED_MODE in given:
                    raise SettingsError(f"{name}: {instead(ENSEMBLE.name, _DECOUPLED_MODE)}")
                numbers = {key: value for key, value in chosen.numbers.items() if key == "max_batch_size"}
                chosen = _Chosen(numbers=numbers)
            most = min(chosen.numbers.get("max_batch_size", base.max_batch_size), engine.max_batch_size)
            if "max_batch_size" in given and most != chosen.numbers["max_batch_size"]:
                raise SettingsError(
                    f"{name}: max_batch_size is {given['max_batch_size']}, that of {engine.name} is"
                    f" {engine.max_batch_size}: an ensemble cannot have more than its engine"
                )
            chosen = msgspec.structs.replace(chosen, numbers={**chosen.numbers, "max_batch_size": most})
        rendered[name] = _model(base, chosen, name)
        texts[path] = render(rendered[name])
        if name not in MODELS:
            texts[path] = _with_head_of(path, texts[path])
    check_start(repository, tables, rendered)
    return texts


def _write(texts: Mapping[Path, str]) -> list[Path]:
    """Write those of `texts` that are not in their files yet; returns these files."""
    changed = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        # Triton loads a model only if it has a version folder; an ensemble's is empty but for this file.
        (path.parent / "1").mkdir(parents=True, exist_ok=True)
        if path.exists():
            # Whether it can be written, before any is.
            path.open("r+b").close()
    for path in changed:
        path.write_text(texts[path], encoding="utf-8")
    return changed


def _tables(repository: Path) -> dict[str, Model]:
    """Declarations of this release for the repository's models, by name."""
    tables = dict(MODELS)
    if prompt_transport(repository / PREPROCESSING.name) == "bls":
        # Somebody else's, whose file is left alone.
        del tables[PREPROCESSING.name]
    for engine in served_names(repository):
        suffix = engine.removeprefix(TENSORRT_LLM.name)
        for model in (TENSORRT_LLM, PREPROCESSING):
            name = model.name + suffix
            is_ours = model is not PREPROCESSING or prompt_transport(repository / name) == "exchange"
            if name not in tables and is_ours:
                tables[name] = msgspec.structs.replace(model, name=name)
    return tables


def _parsed_changes(changes: Iterable[str], tables: Mapping[str, Model]) -> dict[str, dict[str, str]]:
    wanted: dict[str, dict[str, str]] = {}
    for change in changes:
        target, equals, value = change.partition("=")
        model, dot, name = target.partition(".")
        if not (equals and dot and name):
            raise SettingsError(f"{change!r} is not MODEL.NAME=VALUE")
        if model not in tables:
            raise SettingsError(f"there is no model {model!r} in the repository; {meant_or_known(model, tables)}")
        remedy = instead(_base(model), name)
        if remedy is not None:
            raise SettingsError(f"{target} is not a setting here: {remedy}")
        wanted.setdefault(model, {})[name] = value
    return wanted


def _read(path: Path, table: Model) -> _Chosen:
    """Choices in the file at `path`; the table's own values if there is none."""
    if not path.is_file():
        return _Chosen(table.backend, dict(table.parameters))
    where = f"{path.parent.name}/{path.name}"
    try:
        config: Any = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where} is not readable: {error}") from None
    set_fields = [descriptor.name for descriptor, _ in config.ListFields()]
    for name in set_fields:
        if name not in _FIELDS:
            raise SettingsError(f"{where} has {name!r}, which would be lost: this renderer does not know it")
    if len(config.instance_group) > 1:
        raise SettingsError(f"{where} has several instance groups, which would be lost: this renderer knows one")
    numbers = {"max_batch_size": int(config.max_batch_size)}
    if config.instance_group:
        numbers["instances"] = int(config.instance_group[0].count)
    if "dynamic_batching" in set_fields:
        queue = config.dynamic_batching
        _require_known(queue, {"max_queue_delay_microseconds", "default_queue_policy"}, f"{where}: dynamic_batching")
        _require_known(queue.default_queue_policy, {"max_queue_size"}, f"{where}: default_queue_policy")
        numbers["max_queue_delay_microseconds"] = int(queue.max_queue_delay_microseconds)
        numbers["max_queue_size"] = int(queue.default_queue_policy.max_queue_size)
    parameters = {key: value.string_value for key, value in sorted(config.parameters.items())}
    decoupled = config.model_transaction_policy.decoupled if "model_transaction_policy" in set_fields else None
    return _Chosen(config.backend or table.backend, parameters, numbers, decoupled)


def _with_head_of(path: Path, text: str) -> str:
    """`text` under the comments that begin the file at `path`: builds know by them which further engines are theirs."""
    head = itertools.takewhile(_is_comment, path.read_text(encoding="utf-8").splitlines())
    rest = itertools.dropwhile(_is_comment, text.splitlines())
    return "\n".join([*head, *rest]) + "\n"


def _is_comment(line: str) -> bool:
    return line.startswith("#")


def _require_known(message: Message, known: set[str], where: str) -> None:
    for descriptor, _ in message.ListFields():
        if descriptor.name not in known:
            raise SettingsError(f"{where} has {descriptor.name!r}, which would be lost: this renderer does not know it")


def _merged(chosen: _Chosen, changes: Mapping[str, str], *, is_engine: bool) -> _Chosen:
    parameters, numbers, decoupled = dict(chosen.parameters), dict(chosen.numbers), chosen.decoupled
    for name, value in changes.items():
        if name == _DECOUPLED_MODE and is_engine:
            if value.lower() not in ("true", "false", ""):
                raise SettingsError(f"{name} is {value!r}: true or false is needed")
            decoupled = value.lower() == "true" if value else None
        elif name not in _NUMBERS:
            parameters[name] = value
        elif not value.isdecimal():
            raise SettingsError(f"{name} is {value!r}: a number from 0 is needed")
        else:
            numbers[name] = int(value)
    return _Chosen(chosen.backend, parameters, numbers, decoupled)


def _base(name: str) -> str:
    """The model whose settings the model `name` has, for engines and what belongs to them."""
    if name in MODELS:
        return name
    return next((known for known in _SETTINGS if name.startswith(f"{known}_")), name)


def _check_engine(name: str, there: _Chosen, chosen: _Chosen, given: Mapping[str, str]) -> None:
    """Refuse settings that an engine of our own model.py cannot have."""
    if chosen.backend in foreign_backends():
        if chosen.decoupled is False:
            raise SettingsError(
                f"{name}: decoupled_mode is false, but openai_bls has its tokens from the C++ backend as a stream"
            )
        groups = chosen.parameters.get("gpu_device_ids", "").count(";") + 1
        if "instances" in given and given["instances"] != str(groups):
            raise SettingsError(
                f"{name}: instances is {given['instances']}, but an engine of the C++ backend has one for each group "
                f"of GPUs in gpu_device_ids ({groups}): give 0;1 for two instances of a GPU each, 0,1;2,3 of two each"
            )
        return
    instances = chosen.numbers.get("instances", 1)
    if instances > 1 or ("instances" in given and instances != 1):
        raise SettingsError(
            f"{name}: instances is {instances}, but an engine has one instance, which batches by itself"
        )
    for setting in _OF_THE_QUEUE:
        if setting in given and setting not in there.numbers:
            raise SettingsError(
                f"{name}: {setting} is for engines of the C++ backend (openai-bls build --backend cpp); requests of"
                " openai_bls do not go through Triton's queue to this one"
            )


def _with_own_paths(model: Path, chosen: _Chosen, given: Mapping[str, str]) -> _Chosen:
    """`chosen` with the paths of the engine in the folder `model`, if there is one."""
    own = foreign_backends()[chosen.backend].own_paths(model, chosen.parameters)
    for setting, path in own.items():
        if setting in given:
            raise SettingsError(
                f"{model.name}: {setting} is {given[setting]}, but this model has its own, {path}: move that away first"
            )
    return msgspec.structs.replace(chosen, parameters={**chosen.parameters, **own})


def _model(table: Model, chosen: _Chosen, name: str) -> Model:
    """`table` with what was chosen, checked."""
    base = _base(name)
    numbers = chosen.numbers
    is_engine = base == TENSORRT_LLM.name
    foreign = foreign_backends().get(chosen.backend) if is_engine else None
    if chosen.backend != table.backend and foreign is None:
        raise SettingsError(f"{name}/config.pbtxt has the backend {chosen.backend!r}; here it is {table.backend!r}")
    queue = None
    if "max_queue_delay_microseconds" in numbers or "max_queue_size" in numbers:
        queue = Queue(numbers.get("max_queue_delay_microseconds", 0), numbers.get("max_queue_size", 0))
    if table.steps:
        if queue is not None or numbers.get("instances") or chosen.parameters:
            raise SettingsError(
                f"{name} is an ensemble: it has no parameters, instances or queue of its own, and its engine's"
                " decoupled_mode"
            )
        return msgspec.structs.replace(table, max_batch_size=numbers.get("max_batch_size", table.max_batch_size))
    # What the backend itself reads is passed on as it stands.
    given = {key: value for key, value in chosen.parameters.items() if value != "" or foreign is not None}
    cls = _SETTINGS.get(base) if foreign is None else foreign.settings
    own = {key: value for key, value in given.items() if key not in BACKEND_PARAMETERS}
    if cls is None:
        if own:
            raise SettingsError(f"{name} has no parameters; {', '.join(own)} cannot be set")
        settings: msgspec.Struct | None = None
    else:
        try:
            settings = load(cls, own, {})
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
    if foreign is not None:
        try:
            return foreign.model(settings, numbers["max_batch_size"], queue, name)
        except EngineLoadError as error:
            raise SettingsError(f"{name}: {error}") from None
    decoupled = table.decoupled
    if isinstance(settings, TensorRtLlmBlsSettings) and settings.decoupled_mode is not None:
        decoupled = settings.decoupled_mode
    if is_engine and chosen.decoupled is not None:
        decoupled = chosen.decoupled
    return msgspec.structs.replace(
        table,
        parameters=_in_order(given, [*table.parameters, *(cls.__struct_fields__ if cls else ())]),
        queue=queue,
        instances=numbers.get("instances", table.instances),
        max_batch_size=numbers.get("max_batch_size", table.max_batch_size),
        decoupled=decoupled,
    )


def _in_order(parameters: Mapping[str, str], first: Iterable[str]) -> dict[str, str]:
    names = [name for name in first if name in parameters]
    return {name: parameters[name] for name in dict.fromkeys([*names, *parameters])}
