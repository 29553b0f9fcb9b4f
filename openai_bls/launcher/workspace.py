"""Workspace: a model repository that the library writes itself, and updates from release to release.

The wheel carries each model's model.py (a source tree has them in `model_repository/`), and every config.pbtxt is
rendered from the tables, so a repository needs no clone. A record in the repository says what was written: a model.py
that still is what an older release wrote is replaced, one that somebody changed is not. Config files are rendered again
with the values that they have.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

import openai_bls
from openai_bls.core.settings import SettingsError
from openai_bls.launcher.errors import LaunchError
from openai_bls.triton_models.repository.engines import (
    ENGINE,
    PREPROCESSING,
    prompt_transport,
    served_names,
    with_suffix,
)
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import MODELS

REPOSITORY_VARIABLE = "OPENAI_BLS_MODEL_REPOSITORY"
RECORD_NAME = ".openai_bls.json"
"""File in the repository; Triton looks at folders alone."""

_PACKAGE = Path(openai_bls.__file__).parent
_LOCAL = Path("model_repository")
# Of a volume that is a separate file system.
_NOT_A_MODEL = {"lost+found"}


class _Record(msgspec.Struct, frozen=True):
    """Record of what a release wrote into a repository."""

    release: str
    tables: str
    """Hash of all config.pbtxt files as the release renders them by default."""
    code: dict[str, str]
    """Hash of each model.py, by its path in the repository."""
    complete: bool = True
    """Everything has been written."""


def demo_checkpoint() -> Path:
    """The demo checkpoint, which the wheel carries."""
    return _carried("demo") / "checkpoint"


def own_workspace(environ: Mapping[str, str]) -> Path:
    """The repository of a user who names none and is in no folder that has one."""
    data = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "openai_bls" / _LOCAL


def default_repository(environ: Mapping[str, str]) -> Path:
    """The repository of a command line that names none."""
    if named := environ.get(REPOSITORY_VARIABLE):
        return Path(named)
    return _LOCAL if _LOCAL.is_dir() else own_workspace(environ)


def is_own(repository: Path) -> bool:
    """Whether `repository` is the library's, which nobody has to make."""
    return repository.absolute() == own_workspace(os.environ)


def is_vacant(repository: Path) -> bool:
    """There is no such folder, or no model in it."""
    if not repository.is_dir():
        return not repository.exists()
    return not any(entry.is_dir() and entry.name not in _NOT_A_MODEL for entry in repository.iterdir())


def is_current(repository: Path) -> bool:
    """This release wrote the repository, and completely."""
    return _read_record(repository) == _own_record()


def is_recorded(repository: Path) -> bool:
    """Some release wrote the repository."""
    return _read_record(repository) is not None


def outdated(repository: Path) -> list[str]:
    """The models' code in `repository` that is not this release's, as paths below it."""
    return [path for path, text in _code(repository).items() if _differs(repository / path, text)]


def update(repository: Path, report: Callable[[str], None], *, replace_edited: bool = False) -> None:
    """Make `repository`, or bring it up to this release: models that it lacks, code, config.pbtxt files.

    Args:
        repository: a folder; it is made where there is none.
        report: called with one line for each file that is written.
        replace_edited: replace a model.py that nobody knows, too; else it stays, and that is reported.

    Raises:
        LaunchError: it cannot be written, or a config.pbtxt holds what this release does not know.
    """
    before = _read_record(repository)
    own = _own_record()
    try:
        repository.mkdir(parents=True, exist_ok=True)
        if before is None:
            # Half a repository is known as ours, and completed the next time.
            _write_record(repository, msgspec.structs.replace(own, complete=False))
        for name, table in MODELS.items():
            if not (repository / name / "config.pbtxt").is_file():
                _add_model(repository, name, render(table))
                report(f"added: {name}")
        for path, text in _code(repository).items():
            target = repository / path
            if not _differs(target, text):
                continue
            known = before.code.get(_base(path)) if before is not None else None
            if not replace_edited and known != _hash(target.read_bytes()):
                if known != own.code[_base(path)]:
                    report(f"{path} stays as it is, since it was changed here: this release has another one")
                continue
            _put(target, text)
            report(f"replaced: {path}")
        if before is not None and before.tables != own.tables:
            # Here, since protobuf and gRPC are heavy.
            from openai_bls.triton_models.repository.render_configs import configure

            for rendered in configure(repository):
                report(f"rendered: {rendered.relative_to(repository)}, with the values that it had")
        _write_record(repository, own)
    except OSError as error:
        raise LaunchError(
            f"cannot write to {repository} as user {os.getuid()}, group {os.getgid()} ({error.strerror}): make it"
            " writable for this user or group, or name another one with --model-repository"
        ) from None
    except SettingsError as error:
        raise LaunchError(f"{repository} is of another release and cannot be updated: {error}") from None


@contextmanager
def draft(repository: Path) -> Iterator[Path]:
    """`repository`, or in the place of one that is not there yet a temporary one with what `update` would write."""
    if not (is_own(repository) and is_vacant(repository)):
        yield repository
        return
    with tempfile.TemporaryDirectory(prefix="openai_bls-") as folder:
        update(Path(folder) / _LOCAL, lambda _: None)
        yield Path(folder) / _LOCAL


def _carried(name: str) -> Path:
    """A folder that the wheel has inside the package, and a source tree beside it."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def _own_code() -> dict[str, bytes]:
    """Each model.py of this release, by its path in a repository. An ensemble has none."""
    folder = _carried("model_repository")
    paths = [f"{name}/1/model.py" for name, table in MODELS.items() if not table.steps]
    return {path: (folder / path).read_bytes() for path in paths}


def _own_record() -> _Record:
    tables = _hash("".join(render(table) for table in MODELS.values()).encode())
    return _Record(openai_bls.__version__, tables, {path: _hash(text) for path, text in sorted(_own_code().items())})


def _code(repository: Path) -> dict[str, bytes]:
    """Each model.py that `repository` should have, those of further engines included, by its path."""
    own = _own_code()
    found = {}
    for path, text in own.items():
        model = path.partition("/")[0]
        names = [model]
        if model in (ENGINE, PREPROCESSING):
            names = [with_suffix(model, suffix) for suffix in _suffixes(repository)]
        for name in names:
            if model == PREPROCESSING and prompt_transport(repository / name) == "bls":
                # Somebody else's, in the place of ours.
                continue
            found[f"{name}/1/model.py"] = text
    return found


def _suffixes(repository: Path) -> Iterator[str]:
    """Suffix of each engine's models, that of the default one, which is empty, first."""
    for model in served_names(repository):
        yield model.removeprefix(ENGINE).removeprefix("_")


def _base(path: str) -> str:
    """The path in `_own_code` that the code at `path` comes from."""
    model = path.partition("/")[0]
    if model in MODELS:
        return path
    return f"{ENGINE if model.startswith(f'{ENGINE}_') else PREPROCESSING}/1/model.py"


def _differs(path: Path, text: bytes) -> bool:
    return path.is_file() and path.read_bytes() != text


def _add_model(repository: Path, name: str, config: str) -> None:
    """Write a model. The file that makes a folder a model comes last, so that half a model is written again."""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    code = _own_code().get(f"{name}/1/model.py")
    if code is not None:
        _put(folder / "model.py", code)
    _put(repository / name / "config.pbtxt", config.encode())


def _put(target: Path, text: bytes) -> None:
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    aside.write_bytes(text)
    aside.replace(target)


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _read_record(repository: Path) -> _Record | None:
    try:
        return msgspec.json.decode((repository / RECORD_NAME).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _write_record(repository: Path, record: _Record) -> None:
    _put(repository / RECORD_NAME, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
