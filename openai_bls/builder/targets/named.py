"""Target of a named engine, whose models are added and removed as a whole."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from openai_bls.builder.targets.folders import (
    FOLDERS,
    OPENAI_BLS,
    Prepared,
    remove_if_empty,
    version_dir,
    write_configs,
)
from openai_bls.core.manifest import MANIFEST_NAME, BuildError, Manifest, write_manifest
from openai_bls.triton_models.repository.engines import ENGINE, PREPROCESSING, TOKENIZER, with_suffix
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import MODELS

_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,31}")


class NamedTarget:
    """Target of the engine `name`, in separate models.

    A build makes them in `.building-<name>/new`, which becomes `ready`. Then the old ones move to `old`, the engine
    first, and the new ones into place, the engine last. So an engine that is in place belongs to what is beside it, and
    a build that was cut short can be undone step by step.
    """

    def __init__(self, repository: Path, name: str) -> None:
        _check_name(name)
        home = version_dir(repository, OPENAI_BLS)
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
        checkpoint, engine, lora = (new / self.model / "1" / name for name in FOLDERS)
        tokenizers = _tokenizers(*(new / name for name in self._targets))
        return Prepared(checkpoint, engine, lora, self._building / "work", tokenizers).make()

    def commit(self, manifest: Manifest, configs: Mapping[str, str]) -> None:
        """See `DefaultTarget`."""
        new, ready, old = (self._building / name for name in ("new", "ready", "old"))
        for path, text in self.generated.items():
            (new / path).write_text(text, encoding="utf-8")
        for model, config in self.configs.items():
            (new / model / config.name).write_text(self._signed(configs[model]), encoding="utf-8")
        for name in FOLDERS[1:]:
            remove_if_empty(new / self.model / "1" / name)
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
        write_configs(self.version_dir, {self.configs[model]: self._signed(text) for model, text in configs.items()})

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


def _tokenizers(engine: Path, preprocessing: Path, tokenizer: Path) -> list[Path]:
    return [engine / "1" / TOKENIZER, preprocessing / "1" / TOKENIZER, tokenizer]


def _model_code(repository: Path, model: str) -> str:
    """The default engine's model.py serves every engine: it uses the model's own name and folder."""
    try:
        return (repository / model / "1" / "model.py").read_text(encoding="utf-8")
    except OSError:
        raise BuildError(f"{repository} is not the model repository: {model} has no 1/model.py") from None
