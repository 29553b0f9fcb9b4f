"""Checks of the machine, the environment and the model repository before a server is started.

Each returns one line on what it found, or raises `LaunchError` with one line that says what to do.
"""

from __future__ import annotations

import functools
import os
import platform
import resource
import sys
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.api.http.listening.tls_files import TlsError, TlsFiles
from openai_bls.core.manifest import BUILD_HINT, EngineLoadError, load_manifest
from openai_bls.core.settings import EngineSettings, SettingsError
from openai_bls.engines import registry
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.tritonserver.command import (
    WHEEL_PYTHONS,
    backends_folder,
    library_folder,
    missing_library,
    no_wheel_reason,
    python_version,
)
from openai_bls.launcher.tritonserver.ports import is_free
from openai_bls.triton_models.repository.engine_paths import foreign_model
from openai_bls.triton_models.repository.engines import (
    POSTPROCESSING,
    PREPROCESSING,
    engine_settings,
    openai_bls_settings,
    prompt_transport,
)
from openai_bls.triton_models.tensors.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from openai_bls.launcher.tritonserver.command import Server
    from openai_bls.launcher.tritonserver.ports import Ports

ENGINE_MODEL = "tensorrt_llm"
OPENAI_MODEL = "openai_bls"
# Of the models that serve the default engine alone, those beside it and its preprocessing.
_OF_DEFAULT_ENGINE = (POSTPROCESSING, "tensorrt_llm_bls", "ensemble")
TOKENIZER_MODELS = (PREPROCESSING, POSTPROCESSING, OPENAI_MODEL)
"""Models that have a copy of the default engine's tokenizer."""

# Each Python model starts with 1 MB and grows by 1 MB; Docker gives a container 64 MB unless told
# otherwise.
MINIMUM_SHM_BYTES = 32 * 2**20

# An idle tritonserver with these models has some 70 open.
MINIMUM_OPEN_FILES = 256

_SHM = Path("/dev/shm")

# Triton's Python backend starts each model by a line of bash, with the paths of the stub and of the model unquoted.
_OF_BASH = frozenset(" \t\n\"'$&;()<>|\\`")
_CHARACTER_NAMES = {" ": "space", "\t": "tab", "\n": "line break"}

# How to move each port: the launcher's flag, then its environment variable.
PORT_SETTINGS = {
    "http": ("HTTP", "--http-port", "OPENAI_BLS_TRITON_HTTP_PORT"),
    "grpc": ("gRPC", "--grpc-port", "OPENAI_BLS_TRITON_GRPC_PORT"),
    "metrics": ("metrics", "--metrics-port", "OPENAI_BLS_TRITON_METRICS_PORT"),
    "openai": ("/v1", "--openai-port", "OPENAI_BLS_HTTP_PORT"),
}


def check_platform() -> str:
    """Linux on x86-64: the wheel holds no other server."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise LaunchError(
            f"tritonserver needs Linux on x86-64, this is {platform.system()} on"
            f" {platform.machine()}: use a container or another machine"
        )
    return f"Linux on {platform.machine()}"


def check_python(server: Server) -> str:
    """The wheel has a stub for this Python, and the stub finds libpython."""
    version = python_version()
    if server.kind == "wheel":
        if version not in WHEEL_PYTHONS:
            raise LaunchError(no_wheel_reason(version))
        if library_folder() is None:
            raise LaunchError(missing_library())
        unfit = _unfit_character(str(backends_folder()), decoded=False)
        if unfit is not None:
            raise LaunchError(
                f"Triton's Python backend cannot be started from {backends_folder()}, since that path has a {unfit}:"
                " make the environment in another folder"
            )
    return f"Python {platform.python_version()} at {sys.executable}"


def check_numpy(server: Server, version: str | None = None) -> str:
    """Requirement of numpy for the wheel's server: with numpy 2 its stub silently returns wrong bytes."""
    if version is None:
        try:
            version = metadata.version("numpy")
        except metadata.PackageNotFoundError:
            raise LaunchError("numpy is missing: pip install 'numpy<2'") from None
    if server.kind == "wheel" and int(version.split(".")[0]) >= 2:
        raise LaunchError(f"numpy {version} makes the wheel's tritonserver return wrong outputs: pip install 'numpy<2'")
    return f"numpy {version}"


def check_shm(folder: Path = _SHM, minimum: int = MINIMUM_SHM_BYTES) -> str:
    """Writable and not full: tensors travel through it between tritonserver and the models."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        usage = os.statvfs(folder)
    except OSError as error:
        raise LaunchError(
            f"{folder} is not writable ({error.strerror}): mount a tmpfs there, or run the container with --shm-size=1g"
        ) from None
    free = usage.f_bavail * usage.f_frsize
    if free < minimum:
        raise LaunchError(
            f"{folder} has {free >> 20} MiB free, {minimum >> 20} are needed: run the container"
            " with --shm-size=1g, or remove what fills it"
        )
    return f"{folder} with {free >> 20} MiB free"


def check_open_files(minimum: int = MINIMUM_OPEN_FILES) -> str:
    """The server has files for its threads and its clients: where it has none left, libevent ends the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < minimum:
        raise LaunchError(
            f"a process may open {limit} files, and tritonserver needs {minimum} and more, one for each client: raise"
            " the limit, by `ulimit -n 65536` for example"
        )
    return f"{'any number of' if limit == resource.RLIM_INFINITY else limit} open files"


def check_runtime(server: Server) -> list[str]:
    """Everything about the machine and the environment; one line on each."""
    return [check_platform(), check_python(server), check_numpy(server), check_shm(), check_open_files()]


def check_ports(ports: Ports, host: str = "127.0.0.1", triton_host: str = "") -> str:
    """Every port is free, and no two are the same.

    Args:
        ports: ports of the server.
        host: address of /v1.
        triton_host: address of Triton's own ports; empty is that of /v1.
    """
    labels = _port_labels(ports)
    taken = taken_ports(ports, host, triton_host)
    if taken:
        named = ", ".join(f"port {port} ({labels[port]}) is taken on {address}" for port, address in taken.items())
        ways = [
            (flag, variable) for name, (_, flag, variable) in PORT_SETTINGS.items() if getattr(ports, name) in taken
        ]
        others = ", ".join(f"{flag} or {variable}" for flag, variable in ways)
        raise LaunchError(f"{named}: stop what listens there, or choose others with {others}")
    return "ports " + ", ".join(f"{port} ({label})" for port, label in labels.items())


def taken_ports(ports: Ports, host: str, triton_host: str) -> dict[int, str]:
    """Ports of a server on which something listens already, and the address that each would be bound to."""
    openai = ports.openai
    addresses = {port: host if port == openai else triton_host or host for port in _port_labels(ports)}
    return {port: address for port, address in addresses.items() if not is_free(port, address)}


def _port_labels(ports: Ports) -> dict[int, str]:
    """Use of each port; raises `LaunchError` if one cannot be a port or is given twice."""
    owners: dict[int, str] = {}
    for name, (label, flag, _) in PORT_SETTINGS.items():
        port = getattr(ports, name)
        if port == 0 and name == "openai":
            continue
        if not 0 < port < 65536:
            raise LaunchError(f"{flag} {port} is not a TCP port: give one between 1 and 65535")
        if port in owners:
            raise LaunchError(f"port {port} is given to both {owners[port]} and {label}: change {flag}")
        owners[port] = label
    return owners


def with_tls(ports: Ports, repository: Path, environ: Mapping[str, str]) -> Ports:
    """`ports`, with HTTPS on /v1 if the settings name a certificate, whose files are all there and fit.

    Raises:
        LaunchError: one of the files cannot be used.
    """
    try:
        settings = openai_bls_settings(repository / OPENAI_MODEL, environ)
    except (OSError, ValueError, SettingsError):
        # The server itself says what is wrong with it.
        return ports
    try:
        return replace(ports, tls=TlsFiles.of(settings) is not None, client_certificates=bool(settings.ssl_ca_certs))
    except TlsError as error:
        raise LaunchError(f"no HTTPS on /v1: {error}") from None


def check_tls(ports: Ports, repository: Path) -> str | None:
    """The certificate of /v1 can be used, if there is one."""
    return "certificate of /v1" if with_tls(ports, repository, os.environ).tls else None


def model_names(repository: Path) -> list[str]:
    """The models of a repository: Triton loads every folder that lies directly in it."""
    return sorted(entry.name for entry in repository.iterdir() if entry.is_dir())


def check_repository(repository: Path) -> str:
    """The folder exists, holds at least one model, and Triton can start models from it."""
    if not repository.is_dir():
        raise LaunchError(
            f"there is no model repository at {repository}: give another --model-repository, or make one with"
            f" `openai-bls build --model <checkpoint> --model-repository {repository}`"
        )
    names = model_names(repository)
    if not names:
        raise LaunchError(f"the model repository {repository} is empty: give another --model-repository")
    # The path as it is given, which is the one that Triton passes on: a link to it helps.
    unfit = _unfit_character(str(repository))
    if unfit is not None:
        raise LaunchError(
            f"Triton cannot start Python models from {repository}, since that path has a {unfit}: give"
            " --model-repository a link to it whose own path has none, or move the folder"
        )
    for name in names:
        unfit = _unfit_character(name)
        if unfit is not None and any((repository / name).glob("*/model.py")):
            raise LaunchError(f"Triton cannot start the Python model {name!r}, since its name has a {unfit}: rename it")
    for name in MODELS:
        config = repository / name / "config.pbtxt"
        if config.is_file() and not config.read_bytes().strip():
            raise LaunchError(
                f"{config} is empty: put this release's file back, and your settings by `openai-bls render --set`"
            )
    return f"models {', '.join(names)} in {repository}"


def check_further_repository(repository: Path) -> None:
    """Models of your own: their folder, not that of one of them."""
    if (repository / "config.pbtxt").is_file():
        raise LaunchError(f"--with takes a folder of models, and {repository} is a model: give the folder above it")
    if not repository.is_dir() or not model_names(repository):
        raise LaunchError(f"--with {repository}: there are no models")


def check_engine(repository: Path) -> str | None:
    """Every engine has been built, here or where it runs, if the repository has models that run one."""
    about = _check_default_engine(repository)
    if about is None:
        return None
    others = [(folder, _check_further_engine(folder, name)) for folder, name in _further_engines(repository).items()]
    return ", ".join([about, *(f"{folder}{named}" for folder, named in others)])


def check_some_engine(repository: Path) -> list[str]:
    """Reasons why engines would not load, one sentence each: the others are served without them.

    Raises:
        LaunchError: none would.
    """
    if not (repository / ENGINE_MODEL).is_dir():
        return []
    looks: list[Callable[[], object]] = [functools.partial(_check_default_engine, repository)]
    looks += [functools.partial(_check_further_engine, *further) for further in _further_engines(repository).items()]
    problems = []
    for look in looks:
        try:
            look()
        except LaunchError as error:
            problems.append(error)
    if len(problems) == len(looks):
        raise problems[0]
    return list(map(str, problems))


def _check_default_engine(repository: Path) -> str | None:
    model = repository / ENGINE_MODEL
    if not model.is_dir():
        return None
    manifest = model / "1" / "engine.json"
    if not manifest.is_file():
        place = engine_address(repository)
        if not place:
            raise LaunchError(f"there is no engine ({manifest} is missing): {BUILD_HINT}")
        _check_tokenizers(repository, place)
    _check_paths(model, repository)
    named = _named(_check_packages(model))
    return f"engine{f' {manifest}' if manifest.is_file() else ''}{named}"


def _check_further_engine(folder: Path, name: str) -> str:
    """Predicate about a further engine, to follow its folder's name in a line."""
    if not any(folder.glob("*/engine.json")):
        raise LaunchError(
            f"there is no engine in {folder}: build it with `openai-bls build --name {name} --model"
            f" <checkpoint>`, or take it away with `openai-bls build --remove {name}`"
        )
    if not (folder.parent / f"{PREPROCESSING}_{name}").is_dir():
        raise LaunchError(
            f"the engine in {folder} has no preprocessing_{name} beside it: build it with `openai-bls build"
            f" --name {name} --model <checkpoint>`"
        )
    _check_paths(folder, folder.parent)
    return _named(_check_packages(folder))


def _named(about: str) -> str:
    return f" ({about})" if about else ""


def engine_address(repository: Path) -> str:
    """Address of the process that runs the default engine, if somebody else starts it; else empty."""
    return _settings(repository / ENGINE_MODEL).engine_address


def engine_models(names: Sequence[str]) -> list[str]:
    """Models of a repository that hold an engine: the default one, and each with a preprocessing of its own."""
    further = [name.removeprefix(ENGINE_MODEL) for name in names if name.startswith(f"{ENGINE_MODEL}_")]
    suffixes = ["", *(suffix for suffix in further if f"preprocessing{suffix}" in names)]
    return [f"{ENGINE_MODEL}{suffix}" for suffix in suffixes if f"{ENGINE_MODEL}{suffix}" in names]


def models_by_engine(names: Sequence[str]) -> list[list[str]]:
    """Models of a repository that serve one engine alone, for each engine; its own and its preprocessing come first."""
    suffixes = [name.removeprefix(ENGINE_MODEL) for name in engine_models(names)]
    groups = [[f"{ENGINE_MODEL}{suffix}", f"{PREPROCESSING}{suffix}"] for suffix in suffixes]
    return [group if group[0] != ENGINE_MODEL else [*group, *_OF_DEFAULT_ENGINE] for group in groups]


def _check_tokenizers(repository: Path, place: str) -> None:
    """Without the engine's files its tokenizer is all that Triton's side needs."""
    tokenizers = [
        f"{name}/1/tokenizer"
        for name in TOKENIZER_MODELS
        if (repository / name / "1" / "model.py").is_file()
        # Another's has a tokenizer of its own.
        and (name != PREPROCESSING or prompt_transport(repository / name) == "exchange")
    ]
    missing = [folder for folder in tokenizers if not (repository / folder / "tokenizer.json").is_file()]
    if missing:
        raise LaunchError(
            f"the engine runs at {place}, and {repository} lacks its tokenizer: copy {', '.join(missing)} from the"
            " model repository that the engine was built in"
        )


def _further_engines(repository: Path) -> dict[Path, str]:
    """Folders and names of further engines; `tensorrt_llm_bls`, whose name begins alike, holds none."""
    return {
        folder: folder.name.removeprefix(f"{ENGINE_MODEL}_")
        for folder in sorted(repository.glob(f"{ENGINE_MODEL}_*"))
        if folder.name not in MODELS and (any(folder.glob("*/model.py")) or foreign_model(folder) is not None)
    }


def _check_paths(model: Path, repository: Path) -> None:
    """The C++ backend loads the engine that the model has, if it has one."""
    foreign = foreign_model(model)
    if foreign is None:
        return
    for name, own in foreign.strayed(model).items():
        raise LaunchError(
            f"{name} in {model / 'config.pbtxt'} is {foreign.parameters[name]}, not {own}, as if the repository had"
            f" been copied or moved: run `openai-bls render --model-repository {repository}`"
        )


def _check_packages(model: Path) -> str:
    """The engine of the model has the packages and GPUs that it needs; what runs it, if that is another interpreter."""
    settings = _settings(model)
    if settings.engine_address:
        # Whoever started it there has looked after its packages.
        return f"at {settings.engine_address}"
    try:
        manifest = load_manifest(model / "1")
    except EngineLoadError:
        # The load says what is wrong with it.
        return ""
    python = settings.engine_python or manifest.engine_python
    if manifest.engine not in registry.names():
        # The load says so.
        return ""
    try:
        engine = registry.plugin(manifest.engine)
        if engine.check_start is not None:
            return engine.check_start()(manifest, python)
        if not python and engine.problem is not None and (problem := engine.problem()()):
            raise EngineLoadError(problem)
    except EngineLoadError as error:
        raise LaunchError(f"the engine in {model} cannot run: {error}") from None
    return f"run by {python}" if python else ""


def _settings(model: Path) -> EngineSettings:
    """Settings of an engine's model; the defaults where they cannot be read, for the load says what is wrong."""
    try:
        if foreign_model(model) is None:
            return engine_settings(model, os.environ)
    except (OSError, ValueError, SettingsError):
        pass
    return EngineSettings()


def _unfit_character(path: str, *, decoded: bool = True) -> str | None:
    """Name of a character that must not be in a path, or None; `decoded` by the stub's Python, it must be ASCII."""
    for character in path:
        if character in _OF_BASH or (decoded and not character.isascii()):
            return _CHARACTER_NAMES.get(character, f"character {character!r}")
    return None
