"""Watched directory of adapters: a folder that appears in it is loaded under its name, one that disappears unloaded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from openai_bls.core.engine import LoraError
from openai_bls.engines.adapters import CONFIG_FILE

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Seconds between two looks. A folder is loaded once two in a row find it alike: it may be in the middle of a copy."""

_State = tuple[tuple[str, int, int], ...]


def watch(directory: str, update: Callable[[str, str], None]) -> LoraDirectory:
    """Watch `directory`; nothing if it is empty."""
    watched = LoraDirectory(Path(directory), update)
    if directory:
        watched.thread.start()
    return watched


class LoraDirectory:
    """Thread that keeps an engine's adapters like the folders of a directory.

    Adapters that came another way are left alone, and one that somebody unloads stays so until its folder changes.

    Args:
        directory: directory to watch; it need not be there yet.
        update: loads the adapter in a folder under a name, or unloads it where the path is empty; raises LoraError.
    """

    def __init__(self, directory: Path, update: Callable[[str, str], None]) -> None:
        self._directory = directory.absolute()
        self._update = update
        self._seen: dict[str, _State] = {}
        self._done: dict[str, _State] = {}
        """State of each folder when it was loaded, or refused."""
        self._loaded: set[str] = set()
        self._closing = threading.Event()
        self.thread = threading.Thread(target=self._run, name="lora-directory", daemon=True)

    def close(self) -> None:
        """Stop watching; the adapters stay."""
        self._closing.set()
        if self.thread.is_alive():
            self.thread.join()

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:
                logger.exception("%s cannot be watched", self._directory.name)
            if self._closing.wait(INTERVAL_S):
                return

    def look(self) -> None:
        """Compare the directory with what is loaded, once."""
        found = self._states()
        for name in [name for name in self._done if found.get(name) != self._done[name]]:
            del self._done[name]
            if name in self._loaded:
                self._loaded.discard(name)
                self._try(name, "")
        for name, state in found.items():
            if name not in self._done and self._seen.get(name) == state:
                self._done[name] = state
                if self._try(name, str(self._directory / name)):
                    self._loaded.add(name)
        self._seen = found

    def _try(self, name: str, path: str) -> bool:
        try:
            self._update(name, path)
        except LoraError as error:
            logger.warning("the adapter %s is not %s: %s", name, "loaded" if path else "unloaded", error)
            return False
        return True

    def _states(self) -> dict[str, _State]:
        """Names, sizes and times of the files in each folder that holds an adapter."""
        found = {}
        for config in self._directory.glob(f"*/{CONFIG_FILE}"):
            try:
                files = [(path.name, path.stat()) for path in sorted(config.parent.iterdir())]
            except OSError:  # it is being removed
                continue
            found[config.parent.name] = tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
        return found
