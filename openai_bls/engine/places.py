"""Where an engine lies in the model repository, and how a new one takes its place.

The default engine is moved into the committed models folder by folder (`DefaultPlace`). A further engine has models of
its own, which come and go as a whole (`FurtherPlace`)::

    default   {tensorrt_llm,preprocessing,postprocessing,openai_bls}/1/tokenizer/
              tensorrt_llm/1/{checkpoint/,engine.json}
    small     tensorrt_llm_small/     config.pbtxt, 1/{model.py,engine.json,checkpoint/,tokenizer/}
              preprocessing_small/    config.pbtxt, 1/{model.py,tokenizer/}
              openai_bls/1/tokenizer_small/

What is in hand lies in `.aside-…` (default) and in `openai_bls/1/.building-<name>` (further): in version folders, for
Triton takes every folder directly in the repository for a model.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from openai_bls.config_pbtxt import render
from openai_bls.discovery import ENGINE, PREPROCESSING, TOKENIZER, with_suffix
from openai_bls.engine.manifest import (
    ASIDE,
    MANIFEST_NAME,
    OLD,
    EngineLoadError,
    Manifest,
    short,
    write_manifest,
)
from openai_bls.tensors import MODELS

OPENAI_BLS = "openai_bls"
# The engine needs it for grammars, the others for text.
TOKENIZER_MODELS = (ENGINE, PREPROCESSING, "postprocessing", OPENAI_BLS)
_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,31}")


class Prepared(NamedTuple):
    """Empty folders to build into."""

    checkpoint: Path
    tokenizers: list[Path]


class Place(Protocol):
    """An engine's place. Until `commit` the engine in it stays whole."""

    model: str
    """Name of the Triton model that holds the engine."""
    version_dir: Path
    """Where its manifest lies."""
    tokenizers: list[Path]
    """Folders that hold its tokenizer."""
    generated: dict[str, str]
    """Text of the files that are neither the checkpoint's nor the manifest, by their path."""

    def recover(self) -> None:
        """Put right what a build that was killed has left half done.

        Raises:
            EngineLoadError: what lies here is not an engine of ours.
        """
        ...

    def begin(self) -> Prepared:
        """Make the folders to build into."""
        ...

    def commit(self, manifest: Manifest) -> None:
        """Put what was built into its place, and the manifest with it."""
        ...

    def clean(self) -> None:
        """Remove what a build has left; after a failed one the last engine is in its place again."""
        ...


def place_of(repository: Path, name: str) -> Place:
    """The place of the default engine (`name` is empty) or of a further one.

    Raises:
        EngineLoadError: the name cannot be used, or this is not the model repository.
    """
    return FurtherPlace(repository, name) if name else DefaultPlace(repository)


class DefaultPlace:
    """Of the engine in `tensorrt_llm`."""

    def __init__(self, repository: Path) -> None:
        self._version_dirs = [_version_dir(repository, name) for name in TOKENIZER_MODELS]
        self.model = ENGINE
        self.version_dir = self._version_dirs[TOKENIZER_MODELS.index(ENGINE)]
        self.tokenizers = [folder / TOKENIZER for folder in self._version_dirs]
        self.generated: dict[str, str] = {}

    def recover(self) -> None:
        """Nothing: `manifest.checkpoint_dir` sees a build that was cut short, and the next one does all again."""

    def begin(self) -> Prepared:
        """See `Place`."""
        self.clean()
        prepared = Prepared(
            self.version_dir / f"{ASIDE}checkpoint",
            [folder / f"{ASIDE}{TOKENIZER}" for folder in self._version_dirs],
        )
        for folder in (prepared.checkpoint, *prepared.tokenizers):
            folder.mkdir()
        return prepared

    def commit(self, manifest: Manifest) -> None:
        """See `Place`."""
        targets = [self.version_dir / "checkpoint", *self.tokenizers]
        moves = [(target.with_name(f"{ASIDE}{target.name}"), target) for target in targets]
        _swap(moves, lambda: write_manifest(self.version_dir, manifest))

    def clean(self) -> None:
        """See `Place`."""
        _clear_aside(self._version_dirs)


class FurtherPlace:
    """Of the engine `name`, in models of its own.

    A build makes them in `.building-<name>/new`, which becomes `ready`. Then the old ones move to `old`, the engine
    first, and the new ones into their places, the engine last. So an engine that is in its place belongs to what is
    beside it, and one build cut short can be taken back step by step.
    """

    def __init__(self, repository: Path, name: str) -> None:
        check_name(name)
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
        self.tokenizers = self._tokenizers(self._targets)
        self.generated = {
            f"{with_suffix(model, name)}/{file}": text
            for model in (ENGINE, PREPROCESSING)
            for file, text in (
                ("config.pbtxt", _config(model, name)),
                ("1/model.py", _model_code(repository, model)),
            )
        }

    def recover(self) -> None:
        """See `Place`."""
        self.clean()

    def _take_back(self) -> None:
        """Undo what a build has moved, if it was cut short in that."""
        ready, old = self._building / "ready", self._building / "old"
        if (ready / self.model).exists():
            for name, target in reversed(self._targets.items()):
                if not (ready / name).exists():
                    target.rename(ready / name)
                if (old / name).exists():
                    (old / name).rename(target)

    def begin(self) -> Prepared:
        """See `Place`."""
        self.clean()
        new = self._building / "new"
        prepared = Prepared(
            new / self.model / "1" / "checkpoint", self._tokenizers({n: new / n for n in self._targets})
        )
        for folder in (prepared.checkpoint, *prepared.tokenizers):
            folder.mkdir(parents=True)
        return prepared

    def commit(self, manifest: Manifest) -> None:
        """See `Place`."""
        new, ready, old = (self._building / name for name in ("new", "ready", "old"))
        for path, text in self.generated.items():
            (new / path).write_text(text, encoding="utf-8")
        write_manifest(new / self.model / "1", manifest)
        old.mkdir()
        new.rename(ready)
        for name, target in self._targets.items():
            if target.exists():
                target.rename(old / name)
        for name, target in reversed(self._targets.items()):
            (ready / name).rename(target)

    def clean(self) -> None:
        """See `Place`."""
        self._take_back()
        self._require_ours()
        # Renamed first: half of a folder that is being deleted must not be taken for a build that was cut short.
        self._delete([self._building])

    def remove(self) -> None:
        """Take the engine away.

        Raises:
            EngineLoadError: there is none, or it is not ours.
        """
        self._require_ours()
        present = [path for path in (self._building, *self._targets.values()) if path.exists()]
        if not present:
            raise EngineLoadError(f"there is no engine {self._name} in this repository")
        self._delete(present)

    def _delete(self, folders: Iterable[Path]) -> None:
        if self._gone.exists():
            shutil.rmtree(self._gone)
        self._gone.mkdir()
        for folder in folders:
            if folder.exists():
                folder.rename(self._gone / folder.name)
        shutil.rmtree(self._gone)

    def _require_ours(self) -> None:
        """Nobody's own model of the same name may be replaced."""
        engine, preprocessing, _ = self._targets.values()
        for folder, mark in ((engine, MANIFEST_NAME), (preprocessing, TOKENIZER)):
            if folder.exists() and not (folder / "1" / mark).exists() and not _is_rendered(folder, self._name):
                raise EngineLoadError(
                    f"{folder.name} is not of an engine that was built here: choose another --name, or move it away"
                )

    def _tokenizers(self, folders: dict[str, Path]) -> list[Path]:
        engine, preprocessing, tokenizer = folders.values()
        return [engine / "1" / TOKENIZER, preprocessing / "1" / TOKENIZER, tokenizer]


def check_name(name: str) -> None:
    """Whether a further engine may be called so.

    Raises:
        EngineLoadError: it may not.
    """
    if not _NAME.fullmatch(name):
        raise EngineLoadError(
            f"{name!r} cannot name an engine: use 1 to 32 lower-case letters, digits and underscores, "
            "of which the first is no underscore"
        )
    taken = [model for model in (with_suffix(ENGINE, name), with_suffix(PREPROCESSING, name)) if model in MODELS]
    if taken:
        raise EngineLoadError(f"{name!r} cannot name an engine: {taken[0]} is another model")


def _version_dir(repository: Path, model: str) -> Path:
    if not (repository / model).is_dir():
        raise EngineLoadError(f"{short(repository)} is not the model repository: it has no folder {model}")
    folder = repository / model / "1"
    folder.mkdir(exist_ok=True)
    return folder


def _config(model: str, name: str) -> str:
    """The config.pbtxt of the model of the engine `name` that corresponds to the default engine's `model`."""
    text = render(msgspec.structs.replace(MODELS[model], name=with_suffix(model, name)))
    lines = [
        f"# Rendered from openai_bls/tensors.py by {_rendered_by(name)}, and anew whenever that builds the engine.",
        *(line for line in text.splitlines() if not line.startswith("#")),
    ]
    return "\n".join(lines) + "\n"


def _rendered_by(name: str) -> str:
    return f"`build/engine.py --name {name}`"


def _is_rendered(folder: Path, name: str) -> bool:
    try:
        return _rendered_by(name) in (folder / "config.pbtxt").read_text(encoding="utf-8")
    except OSError:
        return False


def _model_code(repository: Path, model: str) -> str:
    """The default engine's model.py serves every engine: it goes by the model's own name and folder."""
    try:
        return (repository / model / "1" / "model.py").read_text(encoding="utf-8")
    except OSError:
        raise EngineLoadError(f"{short(repository)} is not the model repository: {model} has no 1/model.py") from None


def _clear_aside(version_dirs: Iterable[Path]) -> None:
    """Remove what a build has left, and put back what it had moved away without a replacement."""
    for folder in version_dirs:
        for leftover in folder.glob(f"{ASIDE}*"):
            replaced = folder / leftover.name.removeprefix(OLD)
            if leftover.name.startswith(OLD) and not replaced.exists():
                leftover.rename(replaced)
            elif leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


def _swap(moves: list[tuple[Path, Path]], finish: Callable[[], None]) -> None:
    """Move prepared folders into place and `finish`; on any failure put the old ones back.

    The first move's old folder stays until all is done: it marks a swap that was cut short.
    """
    done: list[tuple[Path, Path]] = []
    try:
        for aside, target in moves:
            old = target.with_name(f"{OLD}{target.name}")
            if target.exists():
                target.rename(old)
            done.append((target, old))
            aside.rename(target)
        finish()
    except BaseException:
        for target, old in reversed(done):
            if target.exists():
                shutil.rmtree(target)
            if old.exists():
                old.rename(target)
        raise
    for target, old in reversed(done):
        if old.exists():
            old.rename(target.with_name(f"{ASIDE}gone-{target.name}"))
