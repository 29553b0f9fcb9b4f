"""Target of a build: where an engine lies in the model repository, and how a new one takes the place of the last.

The default engine is moved into the committed models folder by folder (`DefaultTarget`). A named engine has models of
its own, which are added and removed as a whole (`NamedTarget`)::

    default   {tensorrt_llm,preprocessing,postprocessing,openai_bls}/1/tokenizer/
              tensorrt_llm/1/{checkpoint/,engine/,lora/,draft/,engine.json}
              {tensorrt_llm,ensemble,tensorrt_llm_bls}/config.pbtxt
    small     tensorrt_llm_small/     config.pbtxt, 1/{model.py,engine.json,checkpoint/,engine/,lora/,draft/,tokenizer/}
              preprocessing_small/    config.pbtxt, 1/{model.py,tokenizer/}
              openai_bls/1/tokenizer_small/

A build works in `.aside-…` (default) and in `openai_bls/1/.building-<name>` (named): in version folders, since Triton
takes every folder directly in the repository for a model. A build that is killed in the middle of its moves is undone
by the next one, whatever that one does then.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_bls.core.manifest import ASIDE, MANIFEST_NAME, OLD, BuildError, Manifest, write_manifest
from openai_bls.triton_models.repository.engines import ENGINE, PREPROCESSING, TOKENIZER, with_suffix
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import MODELS

OPENAI_BLS = "openai_bls"
# The engine needs it for grammars, the others for text.
TOKENIZER_MODELS = (ENGINE, PREPROCESSING, "postprocessing", OPENAI_BLS)
# The ensembles declare the tensors of their engine's backend.
CONFIGURED_MODELS = (ENGINE, "ensemble", "tensorrt_llm_bls")
# Of an engine's files, beside its manifest; only the first is always there.
_FOLDERS = ("checkpoint", "engine", "lora", "draft")
_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,31}")


class Prepared(NamedTuple):
    """Empty folders to build into. All but `checkpoint` are left out of the engine where they stay empty."""

    checkpoint: Path
    engine: Path
    lora: Path
    draft: Path
    work: Path
    """Scratch space; removed at the end."""
    tokenizers: list[Path]

    def make(self) -> Prepared:
        """Make the folders."""
        for folder in (*self[:-1], *self.tokenizers):
            folder.mkdir(parents=True)
        return self


class _Move(NamedTuple):
    """A file or folder that replaces another."""

    aside: Path
    old: Path
    """Path of what it replaces, until all is done."""
    target: Path

    @classmethod
    def into(cls, target: Path, folder: Path) -> _Move:
        """Replace `target`, with names in `folder`."""
        return cls(folder / f"{ASIDE}{target.name}", folder / f"{OLD}{target.name}", target)


class DefaultTarget:
    """Target in `tensorrt_llm` and the other committed models.

    All files lie ready as `.aside-…`, the manifest in `.aside-pending/`. Then each is moved into place, what it
    replaces waits as `.aside-old-…`, and the manifest goes last. While a manifest is pending, a build that was cut
    short is undone: a name that is not aside any more has been moved into place.
    """

    def __init__(self, repository: Path) -> None:
        version_dirs = [_version_dir(repository, name) for name in TOKENIZER_MODELS]
        # Name of the Triton model that holds the engine, the folder of its manifest, those that hold its tokenizer.
        self.model = ENGINE
        self.version_dir = version_dirs[TOKENIZER_MODELS.index(ENGINE)]
        self.tokenizers = [folder / TOKENIZER for folder in version_dirs]
        # Text of the files that are neither the checkpoint's nor the manifest nor in `configs`, by their path.
        self.generated: dict[str, str] = {}
        # Name of a model → its config.pbtxt, of those configured for the engine. A repository may lack the ensembles.
        configured = [model for model in CONFIGURED_MODELS if (repository / model).is_dir()]
        self.configs = {model: repository / model / "config.pbtxt" for model in configured}
        # The checkpoint first: the loader sees by it that a build was cut short.
        folders = [*(self.version_dir / name for name in _FOLDERS), *self.tokenizers]
        self._moves = [_Move.into(folder, folder.parent) for folder in folders]
        self._config_moves = {
            model: _Move.into(path, _version_dir(repository, model)) for model, path in self.configs.items()
        }
        self._all_moves = [*self._moves, *self._config_moves.values()]
        self._pending = self.version_dir / f"{ASIDE}pending"

    def begin(self) -> Prepared:
        """Make the folders to build into."""
        self.clean()
        checkpoint, engine, lora, draft, *tokenizers = (move.aside for move in self._moves)
        return Prepared(checkpoint, engine, lora, draft, self.version_dir / f"{ASIDE}work", tokenizers).make()

    def commit(self, manifest: Manifest, configs: Mapping[str, str]) -> None:
        """Move what was built into place, and the manifest with it.

        Args:
            manifest: manifest of the engine that was built.
            configs: name of a model → the text of its config.pbtxt; a model that is left out keeps what it has.
        """
        for model, move in self._config_moves.items():
            if model in configs:
                move.aside.write_text(configs[model], encoding="utf-8")
            elif move.target.exists():
                # Everything that stays is aside until it is moved: `_undo` relies on that.
                shutil.copy2(move.target, move.aside)
        self._pending.mkdir()
        write_manifest(self._pending, manifest)
        for move in self._all_moves:
            if move.target.exists():
                move.target.rename(move.old)
            if move.aside.exists():
                move.aside.rename(move.target)
        (self._pending / MANIFEST_NAME).rename(self.version_dir / MANIFEST_NAME)
        for move in self._moves[1 : len(_FOLDERS)]:
            _remove_if_empty(move.target)

    def configure(self, configs: Mapping[str, str]) -> None:
        """Write config.pbtxt files of the engine that is in place."""
        _configure(self.version_dir, {self.configs[model]: text for model, text in configs.items()})

    def clean(self) -> None:
        """Undo what a build that was cut short has moved, and remove what it left: the last engine is whole again."""
        if (self._pending / MANIFEST_NAME).exists():
            self._undo()
            (self._pending / MANIFEST_NAME).unlink()
        # First in the list is the mark of a build that was cut short: without it the engine loads again.
        for move in self._all_moves:
            if move.old.exists():
                move.old.rename(move.old.with_name(f"{ASIDE}gone-{move.target.name}"))
        for folder in {move.aside.parent for move in self._all_moves}:
            for leftover in folder.glob(f"{ASIDE}*"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def _undo(self) -> None:
        for move in reversed(self._all_moves):
            if not move.aside.exists() and move.target.exists():
                move.target.rename(move.aside)
            if move.old.exists():
                move.old.rename(move.target)


class NamedTarget:
    """Target of the engine `name`, in models of its own.

    A build makes them in `.building-<name>/new`, which becomes `ready`. Then the old ones move to `old`, the engine
    first, and the new ones into place, the engine last. So an engine that is in place belongs to what is beside it, and
    a build that was cut short can be undone step by step.
    """

    def __init__(self, repository: Path, name: str) -> None:
        _check_name(name)
        home = _version_dir(repository, OPENAI_BLS)
        self._name = name
        self._building = home / f".building-{name}"
        self._gone = home / f".gone-{name}"
        self.model = with_suffix(ENGINE, name)
        preprocessing, tokenizer = with_suffix(PREPROCESSING, name), with_suffix(TOKENIZER, name)
        # By their names in the folders above, the engine first.
        self._targets = {
            self.model: repository / self.model,
            preprocessing: repository / preprocessing,
            tokenizer: home / tokenizer,
        }
        self.version_dir = repository / self.model / "1"
        self.tokenizers = _tokenizers(*self._targets.values())
        self.generated = {
            f"{with_suffix(model, name)}/1/model.py": _model_code(repository, model)
            for model in (ENGINE, PREPROCESSING)
        }
        config = render(msgspec.structs.replace(MODELS[PREPROCESSING], name=preprocessing))
        self.generated[f"{preprocessing}/config.pbtxt"] = self._signed(config)
        self.configs = {self.model: repository / self.model / "config.pbtxt"}

    def begin(self) -> Prepared:
        """See `DefaultTarget`."""
        self.clean()
        new = self._building / "new"
        checkpoint, engine, lora, draft = (new / self.model / "1" / name for name in _FOLDERS)
        tokenizers = _tokenizers(*(new / name for name in self._targets))
        return Prepared(checkpoint, engine, lora, draft, self._building / "work", tokenizers).make()

    def commit(self, manifest: Manifest, configs: Mapping[str, str]) -> None:
        """See `DefaultTarget`."""
        new, ready, old = (self._building / name for name in ("new", "ready", "old"))
        for path, text in self.generated.items():
            (new / path).write_text(text, encoding="utf-8")
        for model, config in self.configs.items():
            (new / model / config.name).write_text(self._signed(configs[model]), encoding="utf-8")
        for name in _FOLDERS[1:]:
            _remove_if_empty(new / self.model / "1" / name)
        write_manifest(new / self.model / "1", manifest)
        old.mkdir()
        new.rename(ready)
        for name, target in self._targets.items():
            if target.exists():
                target.rename(old / name)
        for name, target in reversed(self._targets.items()):
            (ready / name).rename(target)

    def configure(self, configs: Mapping[str, str]) -> None:
        """See `DefaultTarget`."""
        _configure(self.version_dir, {self.configs[model]: self._signed(text) for model, text in configs.items()})

    def clean(self) -> None:
        """See `DefaultTarget`.

        Raises:
            BuildError: what lies here is not an engine of ours.
        """
        ready, old = self._building / "ready", self._building / "old"
        if (ready / self.model).exists():
            for name, target in reversed(self._targets.items()):
                if not (ready / name).exists():
                    target.rename(ready / name)
                if (old / name).exists():
                    (old / name).rename(target)
        self._require_ours()
        # Renamed first: half of a folder that is being deleted must not be taken for a build that was cut short.
        self._delete([self._building])

    def remove(self) -> None:
        """Delete the engine.

        Raises:
            BuildError: there is none, or it is not ours.
        """
        self._require_ours()
        present = [path for path in (self._building, *self._targets.values()) if path.exists()]
        if not present:
            raise BuildError(f"there is no engine {self._name} in this repository")
        self._delete(present)

    def _delete(self, folders: Iterable[Path]) -> None:
        folders = [folder for folder in folders if folder.exists()]
        if not folders and not self._gone.exists():
            # Nothing is written, so that a repository may be read-only.
            return
        if self._gone.exists():
            shutil.rmtree(self._gone)
        self._gone.mkdir()
        for folder in folders:
            folder.rename(self._gone / folder.name)
        shutil.rmtree(self._gone)

    def _require_ours(self) -> None:
        """Nobody's own model of the same name may be replaced."""
        engine, preprocessing, _ = self._targets.values()
        for folder, mark in ((engine, MANIFEST_NAME), (preprocessing, TOKENIZER)):
            if folder.exists() and not (folder / "1" / mark).exists() and not self._is_signed(folder / "config.pbtxt"):
                raise BuildError(
                    f"{folder.name} is not of an engine that was built here: choose another --name, or move it away"
                )

    @property
    def _signature(self) -> str:
        return f"`build/engine.py --name {self._name}`"

    def _signed(self, config: str) -> str:
        """A rendered config.pbtxt that says what wrote it."""
        lines = [
            f"# Rendered by {self._signature}, and again when that is run with other options.",
            *(line for line in config.splitlines() if not line.startswith("#")),
        ]
        return "\n".join(lines) + "\n"

    def _is_signed(self, config: Path) -> bool:
        try:
            return self._signature in config.read_text(encoding="utf-8")
        except OSError:
            return False


BuildTarget = DefaultTarget | NamedTarget
"""Either target; until `commit` the last engine stays whole."""


def target_of(repository: Path, name: str) -> BuildTarget:
    """Target of the default engine (`name` is empty) or of a named one.

    Raises:
        BuildError: the name cannot be used, or this is not the model repository.
    """
    return NamedTarget(repository, name) if name else DefaultTarget(repository)


@contextmanager
def sole_build(target: BuildTarget) -> Iterator[None]:
    """Keep other builds of this machine out of `target`: each begins by removing what it takes for a killed one's.

    Raises:
        BuildError: another build is running there.
    """
    # Linux's abstract socket names are free again when their process ends in whatever way, and leave no file.
    digest = hashlib.sha256(str(target.version_dir.resolve()).encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0openai_bls-build-{digest}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise BuildError(f"another build is at work in {target.version_dir}: wait until it ends") from None
        yield


def _check_name(name: str) -> None:
    """Raise `BuildError` if a named engine may not be called so."""
    if not _NAME.fullmatch(name):
        raise BuildError(
            f"{name!r} cannot name an engine: use 1 to 32 lower-case letters, digits and underscores, "
            "of which the first is no underscore"
        )
    taken = [model for model in (with_suffix(ENGINE, name), with_suffix(PREPROCESSING, name)) if model in MODELS]
    if taken:
        raise BuildError(f"{name!r} cannot name an engine: {taken[0]} is another model")


def _version_dir(repository: Path, model: str) -> Path:
    if not (repository / model).is_dir():
        raise BuildError(f"{repository} is not the model repository: it has no folder {model}")
    folder = repository / model / "1"
    folder.mkdir(exist_ok=True)
    return folder


def _tokenizers(engine: Path, preprocessing: Path, tokenizer: Path) -> list[Path]:
    return [engine / "1" / TOKENIZER, preprocessing / "1" / TOKENIZER, tokenizer]


def _model_code(repository: Path, model: str) -> str:
    """The default engine's model.py serves every engine: it uses the model's own name and folder."""
    try:
        return (repository / model / "1" / "model.py").read_text(encoding="utf-8")
    except OSError:
        raise BuildError(f"{repository} is not the model repository: {model} has no 1/model.py") from None


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def _configure(version_dir: Path, texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        aside = version_dir / f"{ASIDE}{path.parent.name}-{path.name}"
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
