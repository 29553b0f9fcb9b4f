"""Restarts by the launcher, counted in a file: it outlives every process of the server, and the metrics show it."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

VARIABLE = "OPENAI_BLS_RESTARTS_FILE"
"""Environment variable with the path; there is none without a launcher that restarts."""
SERVER = "tritonserver"


class RestartCounts:
    """Counts of this launcher, written to a separate file."""

    def __init__(self) -> None:
        # In a separate folder: another user could put a link at the name of the file's next version.
        self._folder = tempfile.TemporaryDirectory(prefix="openai_bls-")
        self.path = Path(self._folder.name) / "restarts.json"
        self._counts = {SERVER: 0}
        self._lock = threading.Lock()
        self._write()

    def add(self, part: str) -> None:
        """Count a restart of `SERVER` or of a Triton model. From any thread."""
        with self._lock:
            self._counts[part] = self._counts.get(part, 0) + 1
            self._write()

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()

    def _write(self) -> None:
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(self._counts))
        aside.replace(self.path)


def restart_counts() -> dict[str, int]:
    """Restarts by part, as the launcher around this server has counted them; empty if there is none."""
    try:
        counts: dict[str, int] = json.loads(Path(os.environ[VARIABLE]).read_text())
    except (KeyError, OSError, ValueError):
        return {}
    return counts
