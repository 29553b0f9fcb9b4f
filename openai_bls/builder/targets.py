"""Where an engine lies in the model repository, and how a new one takes its place.

The default engine is moved into the committed models folder by folder (`DefaultPlace`). A further engine has models of
its own, which come and go as a whole (`FurtherPlace`)::

    default   {tensorrt_llm,preprocessing,postprocessing,openai_bls}/1/tokenizer/
              tensorrt_llm/1/{checkpoint/,engine/,lora/,engine.json}
              {tensorrt_llm,ensemble,tensorrt_llm_bls}/config.pbtxt
    small     tensorrt_llm_small/     config.pbtxt, 1/{model.py,engine.json,checkpoint/,engine/,lora/,tokenizer/}
              preprocessing_small/    config.pbtxt, 1/{model.py,tokenizer/}
              openai_bls/1/tokenizer_small/

What is in hand lies in `.aside-…` (default) and in `openai_bls/1/.building-<name>` (further): in version folders, for
Triton takes every folder directly in the repository for a model. A build that is killed in the middle of its moves is
taken back by the next one, whatever that one does then.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_bls.builder.target import Place, Prepared
from openai_bls.core.manifest import ASIDE, MANIFEST_NAME, OLD, EngineLoadError, Manifest, short, write_manifest
from openai_bls.triton_models.config_writer import render
from openai_bls.triton_models.repository import ENGINE, PREPROCESSING, TOKENIZER, with_suffix
from openai_bls.triton_models.tensors import MODELS

OPENAI_BLS = "openai_bls"
# The engine needs it for grammars, the others for text.
TOKENIZER_MODELS = (ENGINE, PREPROCESSING, "postprocessing", OPENAI_BLS)
# The ensembles declare what their engine's backend takes and gives.
CONFIGURED_MODELS = (ENGINE, "ensemble", "tensorrt_llm_bls")
_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,31}")


def place_of(repository: Path, name: str) -> Place:
    """The place of the default engine (`name` is empty) or of a further one.

    Raises:
        EngineLoadError: the name cannot be used, or this is not the model repository.
    """
    return FurtherPlace(repository, name) if name else DefaultPlace(repository)


class _Move(NamedTuple):
    """A file or folder that takes another's place."""

    aside: Path
    old: Path
    """Where what it replaces waits until all is done."""
    target: Path


class DefaultPlace:
    """Of the engine in `tensorrt_llm`.

    Everything lies ready as `.aside-…`, the manifest in `.aside-pending/`. Then each goes into its place, what was
    there waits as `.aside-old-…`, and the manifest goes last. While a manifest is pending, a build that was cut short
    is taken back: a name that is not aside any more has been moved into its place.
    """

    def __init__(self, repository: Path) -> None:
        self._version_dirs = [_version_dir(repository, name) for name in TOKENIZER_MODELS]
        self.model = ENGINE
        self.version_dir = self._version_dirs[TOKENIZER_MODELS.index(ENGINE)]
        self.tokenizers = [folder / TOKENIZER for folder in self._version_dirs]
        self.generated: dict[str, str] = {}
        # Nobody has to keep the ensembles.
        configured = [model for model in CONFIGURED_MODELS if (repository / model).is_dir()]
        self.configs = {model: repository / model / "config.pbtxt" for model in configured}
        # The checkpoint first: the loader sees by it that a build was cut short.
        folders = [*(self.version_dir / name for name in ("checkpoint", "engine", "lora")), *self.tokenizers]
        self._moves = [_move(folder, folder.parent) for folder in folders]
        self._config_moves = {
            model: _move(path, _version_dir(repository, model)) for model, path in self.configs.items()
        }
        self._pending = self.version_dir / f"{ASIDE}pending"

    def recover(self) -> None:
        """See `Place`."""
        self.clean()

    def begin(self) -> Prepared:
        """See `Place`."""
        self.clean()
        checkpoint, engine, lora, *tokenizers = (move.aside for move in self._moves)
        prepared = Prepared(checkpoint, engine, lora, self.version_dir / f"{ASIDE}work", tokenizers)
        for folder in (*prepared[:4], *prepared.tokenizers):
            folder.mkdir()
        return prepared

    def commit(self, manifest: Manifest, configs: Mapping[str, str]) -> None:
        """See `Place`."""
        for model, move in self._config_moves.items():
            if model in configs:
                move.aside.write_text(configs[model], encoding="utf-8")
            elif move.target.exists():
                # Everything that stays is aside until it is moved: `_take_back` goes by that.
                shutil.copy2(move.target, move.aside)
        self._pending.mkdir()
        write_manifest(self._pending, manifest)
        for move in self._all_moves():
            if move.target.exists():
                move.target.rename(move.old)
            if move.aside.exists():
                move.aside.rename(move.target)
        (self._pending / MANIFEST_NAME).rename(self.version_dir / MANIFEST_NAME)
        for move in self._moves[1:3]:
            _remove_if_empty(move.target)

    def configure(self, configs: Mapping[str, str]) -> None:
        """See `Place`."""
        _configure(self.version_dir, {self.configs[model]: text for model, text in configs.items()})

    def clean(self) -> None:
        """See `Place`."""
        if (self._pending / MANIFEST_NAME).exists():
            self._take_back()
            (self._pending / MANIFEST_NAME).unlink()
        # First in the list is the mark of a build that was cut short: without it the engine loads again.
        for move in self._all_moves():
            if move.old.exists():
                move.old.rename(move.old.with_name(f"{ASIDE}gone-{move.target.name}"))
        for folder in {move.aside.parent for move in self._all_moves()}:
            for leftover in folder.glob(f"{ASIDE}*"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def _take_back(self) -> None:
        for move in reversed(self._all_moves()):
            if not move.aside.exists() and move.target.exists():
                move.target.rename(move.aside)
            if move.old.exists():
                move.old.rename(move.target)

    def _all_moves(self) -> list[_Move]:
        return [*self._moves, *self._config_moves.values()]


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
            f"{with_suffix(model, name)}/1/model.py": _model_code(repository, model)
            for model in (ENGINE, PREPROCESSING)
        }
        config = render(msgspec.structs.replace(MODELS[PREPROCESSING], name=preprocessing))
        self.generated[f"{preprocessing}/config.pbtxt"] = self._signed(config)
        self.configs = {self.model: repository / self.model / "config.pbtxt"}

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
        version_dir = new / self.model / "1"
        prepared = Prepared(
            checkpoint=version_dir / "checkpoint",
            engine=version_dir / "engine",
            lora=version_dir / "lora",
            work=self._building / "work",
            tokenizers=self._tokenizers({n: new / n for n in self._targets}),
        )
        for folder in (*prepared[:4], *prepared.tokenizers):
            folder.mkdir(parents=True)
        return prepared

    def commit(self, manifest: Manifest, configs: Mapping[str, str]) -> None:
        """See `Place`."""
        new, ready, old = (self._building / name for name in ("new", "ready", "old"))
        for path, text in self.generated.items():
            (new / path).write_text(text, encoding="utf-8")
        for model, config in self.configs.items():
            (new / model / config.name).write_text(self._signed(configs[model]), encoding="utf-8")
        for name in ("engine", "lora"):
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
        """See `Place`."""
        _configure(self.version_dir, {self.configs[model]: self._signed(text) for model, text in configs.items()})

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
        folders = [folder for folder in folders if folder.exists()]
        if not folders and not self._gone.exists():
            # Then a repository that nobody may write to is as good as any.
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
            if folder.exists() and not (folder / "1" / mark).exists() and not _is_rendered(folder, self._name):
                raise EngineLoadError(
                    f"{folder.name} is not of an engine that was built here: choose another --name, or move it away"
                )

    def _signed(self, config: str) -> str:
        """A rendered config.pbtxt that says whose it is."""
        lines = [
            f"# Rendered by {_rendered_by(self._name)}, and anew when that is run with other options.",
            *(line for line in config.splitlines() if not line.startswith("#")),
        ]
        return "\n".join(lines) + "\n"

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


def _move(target: Path, folder: Path) -> _Move:
    """What replaces `target`, with names in `folder`."""
    return _Move(folder / f"{ASIDE}{target.name}", folder / f"{OLD}{target.name}", target)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def _configure(version_dir: Path, texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        aside = version_dir / f"{ASIDE}{path.parent.name}-{path.name}"
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
