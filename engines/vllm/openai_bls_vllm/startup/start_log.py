"""Cause of a failed start: vLLM's engine core is a separate process, which says why it ends only in its log."""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

_VARIABLE = "VLLM_LOGGING_CONFIG_PATH"
_CONFIG = "DEFAULT_LOGGING_CONFIG"
"""Name of the configuration, which not every version has; without it the log alone tells."""
_RAISED = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)): (\S.*)$")
_PYDANTIC = re.compile(r"Value error, (.*?)(?: \[type=|$)", re.DOTALL)
"""pydantic's report of what a configuration class of vLLM raised."""
_LONGEST = 300
_NOT_THE_CAUSE = ("Engine core initialization failed", "Cancelled", "WorkerProc initialization failed")


class StartLog:
    """While it is open, processes that vLLM starts write their errors into a file too.

    Args:
        named: function that gives the installed vLLM's object at a dotted path.
    """

    def __init__(self, named: Callable[[str], Any]) -> None:
        self._named = named
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._file = Path()

    def __enter__(self) -> StartLog:
        if _VARIABLE in os.environ:
            # The operator's own configuration stays.
            return self
        try:
            config: dict[str, Any] = copy.deepcopy(self._named(f"vllm.logger.{_CONFIG}"))
            self._folder = tempfile.TemporaryDirectory(prefix="openai_bls-vllm-")
            self._file = Path(self._folder.name) / "errors.log"
            # Opened at once: an error after the start must not look for a file that is gone by then.
            config["handlers"]["start_log"] = {
                "class": "logging.FileHandler",
                "level": "ERROR",
                "filename": str(self._file),
            }
            config["loggers"]["vllm"]["handlers"] = [*config["loggers"]["vllm"]["handlers"], "start_log"]
            path = Path(self._folder.name) / "logging.json"
            path.write_text(json.dumps(config))
        except Exception:  # a version that configures its log otherwise: the log alone tells
            return self
        os.environ[_VARIABLE] = str(path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            os.environ.pop(_VARIABLE, None)
            self._folder.cleanup()

    def cause(self) -> str:
        """The last exception that a process of vLLM's logged, without its class; empty if there is none."""
        try:
            return cause(self._file.read_text(errors="replace"))
        except OSError:
            return ""


def cause(text: str) -> str:
    """The last line of a log that names an exception with a message of its own; empty if there is none."""
    found = ""
    for line in text.splitlines():
        match = _RAISED.search(line)
        if match and not match[2].startswith(_NOT_THE_CAUSE):
            found = match[2].strip()
    return found


def sentence(error: BaseException) -> str:
    """What an exception of vLLM's says, in one line of a few hundred characters at most."""
    text = str(error)
    told = _PYDANTIC.search(text)
    return short_line(told[1] if told else text) or type(error).__name__


def short_line(text: str) -> str:
    """The first line of a text, cut where it goes on for long: vLLM lists all of its models, say."""
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
