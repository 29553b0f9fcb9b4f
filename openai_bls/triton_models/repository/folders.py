"""Folders of a server's models, in one model repository, in several, or as object storage gives them.

On a disk a model's folder has its name, and the others lie next to it, or in another `--model-repository` of the
server. From object storage Triton copies each model into a temporary folder of any name, when it loads it: such a model
writes down where it lies, in the server's private folder, and is found once it has been loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from openai_bls.core.manifest import MANIFEST_NAME
from openai_bls.transport.ipc import sockets
from openai_bls.triton_models.server.process import repositories

_NOTE = "folder-of-"


class ModelFolders:
    """Folders of the models of one server, as one of them sees them.

    Args:
        args: arguments of that model's `initialize`.
        owner: process id of the tritonserver.
    """

    def __init__(self, args: Mapping[str, str], owner: int) -> None:
        self.own = Path(args["model_repository"])
        """Folder of the model itself."""
        self._model = args["model_name"]
        self._version = args["model_version"]
        self._owner = owner
        self.settled = self.own.name == self._model
        """True if models lie where they are from the start, loaded or not."""
        # Of the other folders next to one of another name nobody knows whose they are.
        self._repositories = [self.own.parent, *repositories(owner)] if self.settled else []

    def announce(self) -> None:
        """Have the other models find this one.

        Raises:
            OSError: the server's private folder cannot be written to.
        """
        if not self.settled:
            self._note(self._model).write_text(str(self.own), encoding="utf-8")

    def withdraw(self) -> None:
        """Take that back."""
        if not self.settled:
            with contextlib.suppress(OSError):
                self._note(self._model).unlink()

    def find(self, model: str) -> Path | None:
        """Folder of another model; None if it is not there (yet)."""
        found = next((path / model for path in self._repositories if (path / model).is_dir()), None)
        if found is not None:
            return found
        with contextlib.suppress(OSError):
            noted = Path(self._note(model).read_text(encoding="utf-8"))
            if noted.is_dir():
                return noted
        return None

    def of(self, model: str) -> Path:
        """Folder of another model, or where it would lie: in a place that nobody else can write to."""
        return self.find(model) or (self.own.parent if self.settled else self.own) / model

    def suffixes(self, engine: str, tokenizer: str) -> list[str]:
        """What the names of further engines have after that of the first.

        Args:
            engine: name of the first engine's model.
            tokenizer: name of its tokenizer's folder in this model.
        """
        if not self.settled:
            # Each engine has one here.
            folders = sorted((self.own / self._version).glob(f"{tokenizer}_*"))
            return [path.name.removeprefix(f"{tokenizer}_") for path in folders]
        found = [path for folder in self._repositories for path in folder.glob(f"{engine}_*/*/{MANIFEST_NAME}")]
        return sorted({path.parent.parent.name.removeprefix(f"{engine}_") for path in found})

    def _note(self, model: str) -> Path:
        return Path(sockets.address(_NOTE + model, self._owner))
