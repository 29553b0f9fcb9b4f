"""Target of the default engine, whose files are moved into the committed models folder by folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from openai_bls.builder.targets.folders import (
    FOLDERS,
    TOKENIZER_MODELS,
    Prepared,
    remove_if_empty,
    version_dir,
    write_configs,
)
from openai_bls.core.manifest import ASIDE, MANIFEST_NAME, OLD, Manifest, write_manifest
from openai_bls.triton_models.repository.engines import ENGINE, TOKENIZER

# The ensembles declare the tensors of their engine's backend.
CONFIGURED_MODELS = (ENGINE, "ensemble", "tensorrt_llm_bls")


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
        version_dirs = [version_dir(repository, name) for name in TOKENIZER_MODELS]
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
        folders = [*(self.version_dir / name for name in FOLDERS), *self.tokenizers]
        self._moves = [_Move.into(folder, folder.parent) for folder in folders]
        self._config_moves = {
            model: _Move.into(path, version_dir(repository, model)) for model, path in self.configs.items()
        }
        self._all_moves = [*self._moves, *self._config_moves.values()]
        self._pending = self.version_dir / f"{ASIDE}pending"

    def begin(self) -> Prepared:
        """Make the folders to build into."""
        self.clean()
        checkpoint, engine, lora, *tokenizers = (move.aside for move in self._moves)
        return Prepared(checkpoint, engine, lora, self.version_dir / f"{ASIDE}work", tokenizers).make()

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
        for move in self._moves[1 : len(FOLDERS)]:
            remove_if_empty(move.target)
        # An engine of an earlier release may have had a draft model.
        shutil.rmtree(self.version_dir / "draft", ignore_errors=True)

    def configure(self, configs: Mapping[str, str]) -> None:
        """Write config.pbtxt files of the engine that is in place."""
        write_configs(self.version_dir, {self.configs[model]: text for model, text in configs.items()})

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
